"""The offline estimate of tokens, held to a real vocabulary, and the fixed part of a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.context import MOST, cl100k, fixed_part, samples
from nanobot.core.chat import AssistantMessage, Image, ToolCall, UserMessage
from nanobot.core.text import MESSAGE_TOKENS, PICTURE_TOKENS, message_tokens, text_tokens


@pytest.mark.parametrize("kind", samples())
def test_the_estimate_is_no_further_off_than_it_says(kind: str) -> None:
    text = samples()[kind]

    error = text_tokens(text) / cl100k()(text) - 1

    assert -0.25 < error < 0.45


def test_nothing_costs_nothing_and_more_costs_more() -> None:
    assert text_tokens("") == 0
    assert text_tokens("word " * 100) == 105
    assert text_tokens("ab" * 10) < text_tokens("12" * 10) < text_tokens("好事" * 10)


def test_half_a_surrogate_pair_can_be_counted() -> None:
    assert text_tokens("\ud83d") == 1


def test_a_message_costs_its_text_its_calls_and_its_pictures() -> None:
    picture = Image("/a.png", "image/png")
    call = ToolCall("1", "read_file", '{"path": "a"}')

    seen = message_tokens(UserMessage("word " * 100, (picture, picture)))
    called = message_tokens(AssistantMessage("word " * 100, (call,), "thoughts"))

    assert seen == MESSAGE_TOKENS + 105 + 2 * PICTURE_TOKENS
    assert called == 2 * MESSAGE_TOKENS + 105 + text_tokens("read_file") + text_tokens(
        '{"path": "a"}'
    )


def test_the_fixed_part_is_small(tmp_path: Path) -> None:
    count = cl100k()
    parts = fixed_part(tmp_path)

    tokens = {name: count(text) for name, text in parts.items()}

    assert sum(tokens.values()) < MOST, tokens
    assert {"tool recall", "tool spawn", "tool cron"} <= tokens.keys()
    assert list(tokens)[:8] == [
        "identity",
        "AGENTS.md",
        "SOUL.md",
        "USER.md",
        "TOOLS.md",
        "memory",
        "active skills",
        "skills summary",
    ]
