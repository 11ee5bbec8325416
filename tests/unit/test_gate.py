"""Who is let in: nobody by default, by the stable id, a name only as @name."""

from __future__ import annotations

import pytest

from nanobot.core.messages import Role
from nanobot.safety.gate import Gate


@pytest.mark.parametrize(
    ("allow_from", "sender", "username", "role"),
    [
        ([], "1", "ann", None),
        (["1"], "1", "", Role.OWNER),
        (["1"], "11", "", None),
        (["@Ann"], "1", "ann", Role.OWNER),
        (["ann"], "1", "ann", None),
        (["1"], "2", "1", None),
        (["*"], "5", "", Role.GUEST),
        (["*", "5"], "5", "", Role.OWNER),
        (["*"], "*", "", Role.GUEST),
        (["@"], "1", "", None),
    ],
)
def test_the_gate_decides_by_id_and_marked_name(
    allow_from: list[str], sender: str, username: str, role: Role | None
) -> None:
    assert Gate(allow_from).role_of(sender, username) is role
