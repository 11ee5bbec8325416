"""Outbounds as the messages that go into the outbox."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from nanobot.channels.telegram.sending import REPETITION, Payload, payloads
from nanobot.channels.text import MESSAGE_LIMIT, Entity, EntityKind, utf16_length
from nanobot.core.messages import Media, OutboundMessage


def outbound(content: str, *, media: tuple[Media, ...] = ()) -> OutboundMessage:
    return OutboundMessage("telegram", "7", content, media=media)


def test_markdown_becomes_text_and_entities() -> None:
    (piece,) = payloads(outbound("**Hi** [there](https://example.org) `x`\n\n```py\n1\n```"))

    assert Payload.from_json(piece) == Payload(
        "Hi there x\n\n1",
        (
            Entity(EntityKind.BOLD, 0, 2),
            Entity(EntityKind.TEXT_LINK, 3, 5, url="https://example.org"),
            Entity(EntityKind.CODE, 9, 1),
            Entity(EntityKind.PRE, 12, 1, language="py"),
        ),
        first=True,
    )


def test_only_the_first_message_carries_the_reply() -> None:
    first, second = map(Payload.from_json, payloads(outbound(f"{'a' * 4000}\n\n{'b' * 4000}")))

    assert (first.first, second.first) == (True, False)


def test_an_answer_that_shows_nothing_is_no_message() -> None:
    assert payloads(outbound(" \n\u200b")) == ()


@pytest.mark.parametrize("letter", ["a", "🎉", "é "])
def test_every_message_has_room_for_the_mark_of_a_repetition(letter: str) -> None:
    pieces = [Payload.from_json(piece) for piece in payloads(outbound(f"**{letter * 9000}x**"))]

    assert len(pieces) >= 3
    assert max(utf16_length(piece.marked().text) for piece in pieces) <= MESSAGE_LIMIT


def test_the_mark_of_a_repetition_moves_the_entities() -> None:
    marked = Payload("Hi *you*", (Entity(EntityKind.BOLD, 3, 5),), first=True).marked()

    assert marked == Payload(
        f"{REPETITION}Hi *you*",
        (Entity(EntityKind.BOLD, 3 + utf16_length(REPETITION), 5),),
        first=True,
    )


def test_a_file_that_cannot_be_sent_is_named() -> None:
    media = (Media("document", "/home/ann/report.pdf"), Media("photo", "x", name="cat.png"))

    (piece,) = payloads(outbound("Here you are.", media=media))

    assert Payload.from_json(piece).text == (
        "Here you are.\n\n"
        "[a file was not sent, since files are not supported yet: report.pdf]\n\n"
        "[a file was not sent, since files are not supported yet: cat.png]"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entities": []}', '{"text": 5}'])
def test_what_is_no_payload_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Payload.from_json(text)
