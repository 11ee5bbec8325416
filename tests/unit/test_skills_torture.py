"""The torture set: every odd SKILL.md of the wild in one folder, and a thousand of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanobot.agent.context import ContextBuilder
from nanobot.skills.loader import SkillsLoader
from nanobot.skills.reader import Source, read_skill
from tests.fakes.skills import StillClock, write_raw, write_skill

HEAD = "---\nname: {name}\ndescription: Does it.\n"

WORKING: dict[str, str | bytes] = {
    "no-frontmatter": "# Just text\n\nDo it.",
    "bom": b"\xef\xbb\xbf---\nname: bom\ndescription: Does it.\n---\nDo it.",
    "crlf": "---\r\nname: crlf\r\ndescription: Does it.\r\n---\r\nDo it.\r\n",
    "tabs": "---\nname:\ttabs\ndescription:\tDoes it.\n---\nDo it.",
    "colons": '---\nname: colons\ndescription: Use: "a: b", it\'s {odd}: yes\n---\nDo it.',
    "one-line-json": HEAD.format(name="one-line-json")
    + 'metadata: {"openclaw": {"emoji": "🦊", "requires": {"anyBins": ["sh"]}}}\n---\nDo it.',
    "yaml-block": HEAD.format(name="yaml-block")
    + "metadata:\n  openclaw:\n    requires:\n      bins: [sh]\n---\nDo it.",
    "flow": HEAD.format(name="flow")
    + "metadata:\n  {\n    'openclaw':\n      {\n        'requires': { 'bins': ['sh',], },\n"
    + "      },\n  }\n---\nDo it.",
    "json5": HEAD.format(name="json5")
    + "metadata: { openclaw: { requires: { bins: ['sh'], }, /* why */ }, }\n---\nDo it.",
    "emoji": "---\nname: emoji\ndescription: 🦊 and 👩‍👩‍👧\n---\n🦊",
    "megabyte": HEAD.format(name="megabyte") + "---\n" + "x" * 1024**2,
    "missing-name": "---\ndescription: Does it.\n---\nDo it.",
    "unlike-its-folder": "---\nname: other\ndescription: Does it.\n---\nDo it.",
    "latin-body": b"---\nname: latin-body\ndescription: Does it.\n---\nCaf\xe9",
    "inner": HEAD.format(name="inner") + "---\nDo it.",
}
BROKEN: dict[str, str | bytes] = {
    "wrong-types": HEAD.format(name="wrong-types") + "always: [1, 2]\n---\nDo it.",
    "wrong-metadata": HEAD.format(name="wrong-metadata") + "metadata: 7\n---\nDo it.",
    "yaml-bomb": "---\na: &a [x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
    )
    + "metadata: *j\n---\n",
    "not-utf8": b"---\nname: \xff\xfe\ndescription: \xff\n---\n",
    "unclosed": "---\nname: unclosed\ndescription: never ends\n",
}


def test_each_loads_or_is_reported_and_breaks_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    for name, content in (*WORKING.items(), *BROKEN.items()):
        write_raw(root, name, content)
    write_raw(root, "twice", "---\nname: twice\ndescription: one\ndescription: two\n---\nDo it.")
    write_skill(root / "inner", "nested")
    (root / "circle").symlink_to("circle")
    (root / "up").symlink_to("..")
    (root / "inner" / "loop").symlink_to("..")

    snapshot = SkillsLoader(tmp_path, tmp_path / "none", clock=StillClock()).snapshot()

    found = {skill.name for skill in snapshot.skills}
    reasons = {broken.name: broken.reason for broken in snapshot.broken}
    assert found >= WORKING.keys() and not found & reasons.keys()
    assert reasons.keys() >= BROKEN.keys() | {"circle"}
    assert all(reasons.values())
    assert found | reasons.keys() >= {"twice"}
    assert "nested" not in found
    assert (found | reasons.keys()) - WORKING.keys() - BROKEN.keys() <= {"twice", "circle", "up"}


def test_a_turn_reads_none_of_a_thousand_skills_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(source: Source, folder: Path, *, protected: tuple[Path, ...]) -> object:
        read.append(folder)
        return read_skill(source, folder, protected=protected)

    monkeypatch.setattr("nanobot.skills.loader.read_skill", counted)
    for number in range(1000):
        write_skill(tmp_path / "skills", f"skill-{number:04}")
    loader = SkillsLoader(tmp_path, tmp_path / "none", clock=StillClock())
    context = ContextBuilder(tmp_path, loader)
    first = context.skills_of("cli:direct")

    assert len(read) == 1000
    assert context.skills_of("cli:direct") is first
    assert len(read) == 1000
