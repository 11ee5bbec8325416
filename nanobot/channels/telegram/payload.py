"""What one message of an outbound looks like in the outbox: text and entities as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath

from pydantic import TypeAdapter

from nanobot.channels.markdown import to_pieces
from nanobot.channels.text import MESSAGE_LIMIT, Entity, utf16_length
from nanobot.core.messages import Media, OutboundMessage
from nanobot.core.text import one_line

REPETITION = "↻ (may be a repetition)\n"
"""Before a message that may have arrived already; every message leaves room for it."""

_LIMIT = MESSAGE_LIMIT - utf16_length(REPETITION)


@dataclass(frozen=True, slots=True)
class Payload:
    """One message; ``first`` is the one that carries the reply to the asker's message."""

    text: str
    entities: tuple[Entity, ...] = ()
    first: bool = False

    def marked(self) -> Payload:
        """The same with the mark of a possible repetition at its start."""
        shift = utf16_length(REPETITION)
        entities = tuple(replace(entity, offset=entity.offset + shift) for entity in self.entities)
        return Payload(REPETITION + self.text, entities, self.first)

    def to_json(self) -> str:
        """The row in the outbox."""
        return _payloads().dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str) -> Payload:
        """Read what ``to_json`` wrote; raises ValueError on anything else."""
        return _payloads().validate_json(text)


def payloads(outbound: OutboundMessage) -> tuple[str, ...]:
    """The messages an outbound is sent in, as JSON; none when it shows nothing."""
    missing = [
        f"[a file was not sent, since files are not supported yet: {_name(media)}]"
        for media in outbound.media
    ]
    markdown = "\n\n".join([outbound.content, *missing])
    return tuple(
        Payload(piece.text, piece.entities, number == 0).to_json()
        for number, piece in enumerate(to_pieces(markdown, _LIMIT))
    )


def _name(media: Media) -> str:
    return one_line(media.name or PurePath(media.ref).name, 100)


@cache
def _payloads() -> TypeAdapter[Payload]:
    return TypeAdapter(Payload)
