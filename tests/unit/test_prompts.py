"""Every text a model reads, as it is; a changed prompt is a visible diff here."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from nanobot.prompts import render

SNAPSHOTS = Path(__file__).parent / "snapshots"


def test_the_prompts_are_as_reviewed() -> None:
    workspace = Path("/home/ann/.nanobot/workspace")
    owner = render.identity(
        system="Linux x86_64",
        python="3.12.1",
        workspace=workspace,
        owner=True,
        recall_tool="grep",
        message_tool=False,
    )
    guest = render.identity(
        system="Linux x86_64",
        python="3.12.1",
        workspace=workspace,
        owner=False,
        recall_tool="recall",
        message_tool=True,
    )
    header = render.turn_header(
        now=datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
        channel="telegram",
        chat="42",
        thread="7",
        sender="Ann",
        age="9 h",
    )
    notes = {
        "interrupted": render.interrupted(),
        "skipped": render.skipped(),
        "stopped": render.stopped(),
        "continue_cut": render.continue_cut(),
        "ask_again": render.ask_again(),
        "limit_reached": render.limit_reached(20),
        "reflect": render.reflect(),
        "compacted": render.compacted(),
        "digested": render.digested("[2026-03-01 12:00] Ann moved to Basel."),
        "digested, not summed up": render.digested(""),
        "conversation": render.conversation("cli:direct", "[2026-03-01 12:00] owner: hi", "1f"),
        "consolidation": render.consolidation(
            memory="## Preferences\n\n- Tea", edits=True, guest=False, tainted=False
        ),
        "consolidation, tainted": render.consolidation(
            memory="", edits=True, guest=False, tainted=True
        ),
        "consolidation, guest": render.consolidation(
            memory="", edits=False, guest=True, tainted=False
        ),
        "cut_file": render.cut_file(10, 20, Path("/w/AGENTS.md")),
        "spilled": render.spilled(Path("/h/spill/1.txt")),
        "picture_past": render.picture_past(Path("/h/media/1.png")),
        "picture_unseen": render.picture_unseen("some-model"),
        "picture_failed": render.picture_failed("cat.heic", "It is not a picture."),
    }
    sections = {
        "identity, owner": owner,
        "identity, guest": guest,
        "skills": render.skills("<skills>…</skills>"),
        "skill command": render.skill_command(
            command="weather",
            skill="weather",
            folder=Path("/s/weather"),
            body="# Weather\n\nAsk /s/weather/ask.sh.",
            arguments="Paris tomorrow",
        ),
        "skill command without arguments": render.skill_command(
            command="a_b", skill="a-b", folder=Path("/s/a-b"), body="Do it.", arguments=""
        ),
        "turn header": header,
        **notes,
        "profile, job": render.profile("job"),
        "profile, heartbeat": render.profile("heartbeat"),
        "heartbeat task": render.heartbeat_task("- [ ] mail\n", Path("/w/HEARTBEAT.md")),
    }

    shown = "".join(f"=== {name}\n{text}\n\n" for name, text in sections.items())

    assert shown == (SNAPSHOTS / "prompts.txt").read_text(encoding="utf-8")
