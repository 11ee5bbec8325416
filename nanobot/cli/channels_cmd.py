"""``nanobot channels``: each channel, whether it is enabled and connected, and its last error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from nanobot.cli.context import EXIT_NO_GATEWAY, CliContext
from nanobot.cli.show import printable
from nanobot.core.text import one_line

if TYPE_CHECKING:
    from nanobot.config.schema import ChannelsConfig

channels_app = typer.Typer(
    help="Show the channels.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)


@channels_app.callback()
def _group() -> None:
    """Show the channels."""


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A channel as configured and as the gateway reports it; ``connected`` None: not reported."""

    name: str
    enabled: bool
    connected: bool | None
    detail: str
    last_error: str
    error_at: str

    def sentence(self) -> str:
        """The row as a sentence, with the command that switches a disabled channel on."""
        if not self.enabled and self.connected is None:
            return f"off: `nanobot config set channels.{self.name}.enabled true` switches it on"
        if self.connected is None:
            return "enabled; `nanobot gateway` serves it"
        state = "connected" if self.connected else "not connected"
        state += f" ({self.detail})" if self.detail else ""
        state += "" if self.enabled else "; off from the gateway's next start on"
        if not self.last_error:
            return state
        when = f" ({self.error_at})" if self.error_at else ""
        return f"{state}; last error{when}: {self.last_error}"

    def document(self) -> dict[str, Any]:
        """The row for ``--json``."""
        return {
            "name": self.name,
            "enabled": self.enabled,
            "connected": self.connected,
            "detail": self.detail,
            "lastError": self.last_error,
            "errorAt": self.error_at or None,
        }


@channels_app.command(name="status")
def channels_status(
    context: typer.Context,
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
) -> None:
    """Show each channel: enabled, connected, last error (exit code 5 without a gateway)."""
    from nanobot.cli.setup import load
    from nanobot.cli.talk import SocketTalk

    cli: CliContext = context.obj
    config = load(cli, again=True).config
    talk = SocketTalk.connect(cli.home)
    facts: Mapping[str, Any] = {}
    if talk is not None:
        with talk:
            facts = talk.status()
    serves = "channels" in facts  # a REPL holds the home as well and serves none
    rows = channel_rows(config.channels, facts.get("channels", ()))
    if as_json:
        document = {"gateway": serves, "channels": [row.document() for row in rows]}
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        for line in _table(rows):
            typer.echo(line)
    if not serves:
        typer.echo(
            "nanobot: no gateway is running, so no channel is: `nanobot gateway` starts it",
            err=True,
        )
        raise typer.Exit(EXIT_NO_GATEWAY)


def channel_rows(
    config: ChannelsConfig, reported: Iterable[Mapping[str, Any]]
) -> tuple[ChannelRow, ...]:
    """The channels that are configured or running; ``reported`` is what the gateway says."""
    enabled = {"telegram": config.telegram.enabled}
    enabled.update((name, channel.enabled) for name, channel in config.plugins.items())
    running = {str(each["name"]): each for each in reported}
    return tuple(
        _row(name, is_enabled=enabled.get(name, False), said=running.get(name))
        for name in dict.fromkeys((*enabled, *running))
    )


def _row(name: str, *, is_enabled: bool, said: Mapping[str, Any] | None) -> ChannelRow:
    connected = None if said is None else bool(said.get("connected"))
    said = said or {}
    return ChannelRow(
        name,
        is_enabled,
        connected,
        _clean(said.get("detail")),
        _clean(said.get("lastError")),
        _local(said.get("errorAt")),
    )


def _clean(text: Any) -> str:
    return one_line(printable(str(text or "")))


def _local(moment: Any) -> str:
    """An ISO moment as local time, "" for none."""
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}" if moment else ""


def _table(rows: Iterable[ChannelRow]) -> list[str]:
    """Aligned columns under their headings."""
    words = {True: "yes", False: "no", None: "-"}
    cells = [("CHANNEL", "ENABLED", "CONNECTED", "DETAIL", "LAST ERROR")]
    for row in rows:
        error = f"{row.error_at} {row.last_error}".strip()
        cells.append(
            (row.name, words[row.enabled], words[row.connected], row.detail or "-", error or "-")
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
