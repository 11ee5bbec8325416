"""Every text a model reads, as it is; a changed prompt is a visible diff here."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from pathlib import Path

import jinja2
import pytest

from nanobot.core.messages import Unanswered
from nanobot.core.turn_header import TIME, TurnHeader
from nanobot.prompts import render

SNAPSHOT = Path(__file__).parent / "snapshots" / "prompts.txt"
TEMPLATES = Path(render.__file__).parent / "templates"


def sections() -> dict[str, str]:
    """Each text under the name of what it is; a typed function may stand here several times."""
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
    time = datetime(2026, 3, 1, 12, 0, tzinfo=UTC).strftime(TIME)
    header = TurnHeader(time, "telegram", "42", "7", "Ann", "9 h ago").before("").strip()
    notes = {
        "interrupted": render.interrupted(),
        "skipped": render.skipped(),
        "stopped": render.stopped(),
        **{f"unanswered, {ending}": render.unanswered(ending) for ending in Unanswered},
        "subagents_stopped": render.subagents_stopped(["mail", 'fl"ights']),
        "sent": render.sent(
            now=datetime(2026, 3, 1, 12, 0, tzinfo=UTC), by='the reminder “"Tea" at <5>”'
        ),
        "continue_cut": render.continue_cut(),
        "ask_again": render.ask_again(),
        "limit_reached": render.limit_reached(20),
        "repeated": render.repeated(5),
        "stuck": render.stuck(20),
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
        "unspilled": render.unspilled("/h/spill: cannot be written: No space left on device"),
        "cut_files": render.cut_files(Path("/w/TOOLS.md")),
        "trimmed": render.trimmed(Path("/h/spill/2.txt")),
        "too_large": render.too_large(Path("/h/spill/3.txt")),
        "picture_past": render.picture_past(Path("/h/media/1.png")),
        "picture_unseen": render.picture_unseen("some-model"),
        "picture_failed": render.picture_failed("cat.heic", "It is not a picture."),
    }
    return {
        "identity, owner": owner,
        "identity, guest": guest,
        "skills": render.skills("<skills>…</skills>"),
        "skills, too many": render.skills("<skills>…</skills>", workspace / "skills.txt"),
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
        "compaction_task": render.compaction_task(),
        "compaction_request": render.compaction_request("[person]\nHi.", ""),
        "compaction_request, with a focus": render.compaction_request("[person]\nHi.", "the move"),
        "summary": render.summary("## Decided\nOak, not pine.", tainted=False),
        "summary of what came from outside": render.summary("## Facts\nNone.", tainted=True),
        "under_way": render.under_way("Order the oak."),
        "profile, job": render.profile("job"),
        "profile, heartbeat": render.profile("heartbeat"),
        "subagent_identity": render.subagent_identity(
            system="Linux x86_64", python="3.12.1", workspace=workspace
        ),
        "subagent_report": render.subagent_report(
            label="mail", ending="finished", text="Two letters.\n"
        ),
        "heartbeat task": render.heartbeat_task("- [ ] mail\n", Path("/w/HEARTBEAT.md")),
    }


def test_the_prompts_are_as_reviewed() -> None:
    shown = "".join(f"=== {name}\n{text}\n\n" for name, text in sections().items())

    assert shown == SNAPSHOT.read_text(encoding="utf-8")


def test_every_function_that_renders_a_text_has_a_snapshot() -> None:
    functions = {
        name
        for name, function in inspect.getmembers(render, inspect.isfunction)
        if function.__module__ == render.__name__ and not name.startswith("_")
    } | {"turn_header"}  # written by core.turn_header, which also reads it
    titles = [title.replace(" ", "_") for title in sections()]
    sampled = {max(filter(title.startswith, functions), key=len, default=title) for title in titles}

    assert sampled == functions


@pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.j2")), ids=lambda path: path.name)
def test_every_piece_of_a_template_is_in_the_snapshot(template: Path) -> None:
    """Whatever branch a piece of text stands in, somebody has reviewed it as it is rendered."""
    tokens = jinja2.Environment().lex(template.read_text(encoding="utf-8"))
    pieces = [_spaced(text) for _, kind, text in tokens if kind == "data"]
    snapshot = _spaced(SNAPSHOT.read_text(encoding="utf-8"))

    missing = [piece for piece in pieces if piece not in snapshot]

    assert missing == []


def _spaced(text: str) -> str:
    return " ".join(text.split())
