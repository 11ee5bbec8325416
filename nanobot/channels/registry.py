"""The channels a gateway serves: Telegram, and those of other packages.

A package declares ``[project.entry-points."nanobot.channels"]`` with a line ``name =
"module:name"`` for each channel; it is called with a ``ChannelHost`` and returns a
``nanobot.core.ports.Channel``. The entry point's name is the channel's, and the name of its section
in the config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from loguru import logger

from nanobot.bus.inbox import Poison
from nanobot.config.schema import ChannelsConfig
from nanobot.core.errors import ConfigError
from nanobot.core.messages import InboundMessage
from nanobot.core.ports import Channel, Clock
from nanobot.core.text import one_line
from nanobot.safety.gate import Gate
from nanobot.store.home import Home, file_name

GROUP = "nanobot.channels"

_PORT = ("run", "wait_ready", "pieces", "send", "began", "ended", "state", "aclose")
"""What nanobot.core.ports.Channel has beside its name."""


class Intake(Protocol):
    """Takes messages in: once a method returns, what it accepted is stored durably.

    ``post_all`` waits until there is room for all and returns those that were new; ``post_now``
    does not wait and returns those for which there is no room.
    """

    async def post_all(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]: ...

    async def post_now(
        self, messages: Sequence[InboundMessage], poison: Sequence[Poison] = ()
    ) -> tuple[InboundMessage, ...]: ...


@dataclass(frozen=True, slots=True)
class ChannelHost:
    """What the constructor of a channel in another package gets.

    ``settings`` are the keys of its section beside ``enabled`` and ``allowFrom``, as they are
    written there. ``gate`` is to be asked before a message is built; ``intake`` takes it in.
    ``menu`` holds the commands, name and description.
    """

    name: str
    settings: Mapping[str, Any]
    gate: Gate
    intake: Intake
    menu: tuple[tuple[str, str], ...]
    clock: Clock
    environ: Mapping[str, str]
    folder: Path

    def data_dir(self) -> Path:
        """A private folder for the channel's own data; made on first use."""
        for place in (self.folder.parent, self.folder):
            place.mkdir(mode=0o700, exist_ok=True)
        return self.folder


def enabled_channels(config: ChannelsConfig) -> frozenset[str]:
    """The names of the channels that the gateway serves."""
    names = {name for name, section in config.plugins.items() if section.enabled}
    return frozenset(names | ({"telegram"} if config.telegram.enabled else set()))


def plugin_channels(
    config: ChannelsConfig,
    *,
    intake: Intake,
    menu: Sequence[tuple[str, str]],
    clock: Clock,
    environ: Mapping[str, str],
    home: Home,
) -> dict[str, Channel]:
    """The enabled channels of other packages, by name.

    Raises ConfigError for one that cannot be loaded: somebody expects it to answer. Blocks while
    the packages are imported.
    """
    return {
        name: _loaded(
            ChannelHost(
                name=name,
                settings=section.model_extra or {},
                gate=Gate(section.allow_from),
                intake=intake,
                menu=tuple(menu),
                clock=clock,
                environ=environ,
                folder=home.plugins / file_name(name),
            )
        )
        for name, section in sorted(config.plugins.items())
        if section.enabled
    }


def _loaded(host: ChannelHost) -> Channel:
    try:
        (entry, *_) = entry_points(group=GROUP, name=host.name)
        channel: Channel = entry.load()(host)
    except Exception as error:  # the supervision point of code that is not ours
        logger.opt(exception=error).debug("the channel {} failed to load", host.name)
        raise _broken(host, f"{type(error).__name__}: {error}".rstrip(": ")) from error
    if missing := [part for part in _PORT if not callable(getattr(channel, part, None))]:
        raise _broken(host, f"it has no {' and no '.join(missing)}")
    if getattr(channel, "name", None) != host.name:
        raise _broken(host, f"it calls itself {getattr(channel, 'name', None)!r}")
    return channel


def _broken(host: ChannelHost, why: str) -> ConfigError:
    return ConfigError(
        f"channels.{host.name} is enabled but its package cannot serve it: {one_line(why)}; "
        f"mend it, or switch it off: nanobot config set channels.{host.name}.enabled false"
    )
