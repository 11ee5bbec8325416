"""One typed function for each text a model reads; the texts themselves are Jinja2 templates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.core.messages import Unanswered
from nanobot.core.text import attribute, one_line
from nanobot.core.turn_header import TIME

if TYPE_CHECKING:
    import jinja2


def identity(
    *,
    system: str,
    python: str,
    workspace: Path,
    owner: bool,
    recall_tool: str,
    message_tool: bool,
) -> str:
    """Who the assistant is, where it runs and how it works."""
    return _render(
        "identity",
        system=system,
        python=python,
        workspace=workspace,
        owner=owner,
        recall_tool=recall_tool,
        message_tool=message_tool,
    )


def subagent_identity(*, system: str, python: str, workspace: Path) -> str:
    """Who a subagent is, where it runs and how it works."""
    return _render("subagent_identity", system=system, python=python, workspace=workspace)


def skills(summary: str, catalogue: Path | None = None) -> str:
    """The ``# Skills`` section round the list; ``catalogue`` has all where the list is short."""
    return _render("skills", summary=summary, catalogue=catalogue)


def profile(name: str) -> str:
    """What is different in a turn that no person began: ``job``, ``heartbeat``."""
    return _render(f"profile_{name}")


def subagent_report(*, label: str, ending: str, text: str) -> str:
    """A subagent's result as the turn that sent it reads it; ``ending`` says how it came about."""
    return _render("subagent_report", label=attribute(label), ending=ending, text=text.strip())


def subagents_stopped(labels: Sequence[str]) -> str:
    """Tells a session that its subagents were stopped."""
    return _note("subagents_stopped", ", ".join(f"“{attribute(label)}”" for label in labels))


def sent(*, now: datetime, by: str) -> str:
    """Tells a chat's session where words came from that none of its turns wrote."""
    return _note("sent", now.strftime(TIME), attribute(by))


def heartbeat_task(text: str, path: Path) -> str:
    """The message of a heartbeat's turn: all of HEARTBEAT.md."""
    return _render("heartbeat_task", text=text.strip(), path=path)


def skill_command(*, command: str, skill: str, folder: Path, body: str, arguments: str) -> str:
    """A skill's body as the model gets it when somebody types its command."""
    return _render(
        "skill_command",
        command=command,
        skill=skill,
        folder=folder,
        body=body,
        arguments=arguments,
    )


def interrupted() -> str:
    """The result of a call that was open when the process died."""
    return _note("interrupted")


def skipped() -> str:
    """The result of a call not started because the user wrote again."""
    return _note("skipped")


def stopped() -> str:
    """The result of a call that the user stopped."""
    return _note("stopped")


def unanswered(ending: Unanswered) -> str:
    """Closes a request in the history that ended without an answer."""
    return _note("unanswered", ending.value)


def continue_cut() -> str:
    """Asks for the rest of an answer that the output limit cut off."""
    return _note("continue_cut")


def ask_again() -> str:
    """Asks once more after an empty answer."""
    return _note("ask_again")


def limit_reached(steps: int) -> str:
    """Asks where things stand after the last step allowed."""
    return _note("limit_reached", steps)


def repeated(times: int) -> str:
    """Tells the model that it takes the same step again and again."""
    return _note("repeated", times)


def stuck(times: int) -> str:
    """Asks where things stand in a turn that is ended because it repeats itself."""
    return _note("stuck", times)


def reflect() -> str:
    """Asks the model to assess what the tools returned."""
    return _note("reflect")


def compacted() -> str:
    """Stands for the earlier part of a conversation that is left out."""
    return _note("compacted")


def consolidation(*, memory: str, edits: bool, guest: bool, tainted: bool) -> str:
    """How to digest a conversation; ``memory`` is MEMORY.md, shown when it may be edited."""
    return _render("consolidation", memory=memory, edits=edits, guest=guest, tainted=tainted)


def conversation(session: str, text: str, mark: str) -> str:
    """The part of a conversation to digest, between marks it cannot guess."""
    return _note("conversation", session, text, mark)


def digested(paragraphs: str) -> str:
    """Stands for the part of a conversation that was digested; ``paragraphs`` sum it up."""
    return _note("digested", "memory/HISTORY.md", paragraphs)


def cut_file(shown: int, total: int, path: Path) -> str:
    """Stands at the end of a file of which only a part is shown."""
    return _note("cut_file", f"{shown:,}", f"{total:,}", path)


def spilled(path: Path) -> str:
    """Marks where a tool result was cut; ``{omitted}`` in it stands for the count."""
    return _note("spilled", path)


def unspilled(reason: str) -> str:
    """Marks where a tool result was cut that no file holds; ``{omitted}`` as in ``spilled``."""
    return _note("unspilled", one_line(reason))


def cut_files(path: Path) -> str:
    """Stands for a bootstrap file for which there is no room left."""
    return _note("cut_files", path)


def trimmed(path: Path) -> str:
    """Stands for an old tool result that was trimmed."""
    return _note("trimmed", path)


def too_large(path: Path) -> str:
    """Stands for a new tool result that the window has no room for."""
    return _note("too_large", path)


def compaction_task() -> str:
    """Tells a model how to sum up the older part of a conversation."""
    return _macro("compaction", "task")


def compaction_request(transcript: str, focus: str) -> str:
    """The conversation to be summed up; ``focus`` is what to go into above all, or ""."""
    return _macro("compaction", "conversation", transcript, focus)


def summary(text: str, *, tainted: bool) -> str:
    """A model's summary in place of what it sums up; ``tainted``: that held words from outside."""
    return _macro("compaction", "summary", text, tainted)


def under_way(message: str) -> str:
    """The message being worked on, where it stands in the part that is summed up."""
    return _macro("compaction", "under_way", message)


def picture_past(path: Path) -> str:
    """Stands for a picture that was shown before, in another turn or with too many others."""
    return _note("picture_past", path)


def picture_unseen(model: str) -> str:
    """Stands for a picture that the model cannot be shown."""
    return _note("picture_unseen", model)


def picture_failed(name: str, reason: str) -> str:
    """Stands for a picture that somebody sent and that cannot be shown to any model."""
    return _note("picture_failed", attribute(name), reason)


def _render(template: str, **variables: Any) -> str:
    return _environment().get_template(f"{template}.md.j2").render(**variables).strip()


def _note(macro: str, *arguments: object) -> str:
    return _macro("notes", macro, *arguments)


def _macro(template: str, macro: str, *arguments: object) -> str:
    module = _environment().get_template(f"{template}.md.j2").module
    text: str = getattr(module, macro)(*arguments)
    return str(text).strip()


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
