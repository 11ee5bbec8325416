"""What is known of models by name, and what their endpoints make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanobot.config.load import load_config
from nanobot.config.schema import ModelOverride
from nanobot.core.chat import (
    AssistantMessage,
    ChatMessage,
    Image,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from nanobot.providers.answer import ThinkingBlocks
from nanobot.providers.catalogue import context_window, reasons
from nanobot.providers.quirks import Options, Quirks, ReasoningBack, overridden, quirks_at
from nanobot.providers.wire import marked, may_think, wire_messages

MARK = {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("provider", "through_litellm", "model", "quirks"),
    [
        ("openai", False, "gpt-4o", Quirks(takes_effort=False)),
        (
            "mistral",
            False,
            "mistral-large",
            Quirks(short_call_ids=True, sees=False, takes_effort=False),
        ),
        (
            "openrouter",
            False,
            "anthropic/claude-sonnet-4-5",
            Quirks(
                reasoning_back=ReasoningBack.DETAILS,
                cache_roles=frozenset({"system", "user"}),
                asks_for_cost=True,
            ),
        ),
        (
            "openrouter",
            False,
            "openai/gpt-4o",
            Quirks(reasoning_back=ReasoningBack.DETAILS, asks_for_cost=True, takes_effort=False),
        ),
        (
            "anthropic",
            True,
            "claude-sonnet-4-5",
            Quirks(
                effort_room=4096,
                reasoning_back=ReasoningBack.BLOCKS,
                cache_roles=frozenset({"system", "user", "tool"}),
            ),
        ),
        (
            "custom",
            True,
            "bedrock/us.anthropic.claude-sonnet-4-5-v1:0",
            Quirks(
                effort_room=4096,
                reasoning_back=ReasoningBack.BLOCKS,
                cache_roles=frozenset({"system", "user", "tool"}),
            ),
        ),
        ("gemini", True, "gemini-2.5-flash", Quirks(long_call_ids=True, effort_off="none")),
        ("gemini", True, "gemini-2.5-pro", Quirks(long_call_ids=True)),
        (
            "gemini",
            True,
            "gemini-3-pro-preview",
            Quirks(
                long_call_ids=True,
                effort_off="none",
                litellm_facts=frozenset({"supports_reasoning"}),
            ),
        ),
        ("custom", True, "cohere/command-r", Quirks(sees=False, takes_effort=False)),
    ],
)
def test_each_endpoint_has_its_departures(
    provider: str, through_litellm: bool, model: str, quirks: Quirks
) -> None:
    assert quirks_at(provider, through_litellm=through_litellm)(model) == quirks


@pytest.mark.parametrize(
    ("model", "takes_temperature"),
    [
        ("claude-sonnet-4-5", True),
        ("claude-haiku-4-5-20251001", True),
        ("claude-opus-4-20250514", True),
        ("claude-3-7-sonnet-latest", True),
        ("claude-opus-4-7", False),
        ("anthropic/claude-opus-4.8", False),
        ("claude-sonnet-5", False),
        ("claude-opus-5-20270101", False),
        ("bedrock/us.anthropic.claude-fable-5-v1:0", False),
    ],
)
def test_claude_takes_no_temperature_from_opus_4_7_on(model: str, takes_temperature: bool) -> None:
    for through_litellm in (False, True):
        quirks = quirks_at("any", through_litellm=through_litellm)(model)
        assert quirks.takes_temperature is takes_temperature


def test_what_is_configured_comes_last() -> None:
    override = ModelOverride(
        max_tokens_field="max_tokens", temperature=1, vision=False, reasoning=False
    )

    quirks = quirks_at("openai", through_litellm=False, overrides={"gpt-5": override})("gpt-5")

    assert quirks == Quirks(
        takes_max_completion_tokens=False,
        takes_temperature=True,
        temperature=1,
        takes_effort=False,
        effort_off="minimal",
        sees=False,
    )
    assert Options(100, 0.3, "high", quirks).fields() == {
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        "temperature": 1,
    }


def test_a_temperature_that_is_to_be_left_out_can_be_configured(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    settings = {"providers": {"openai": {"models": {"odd": {"temperature": "omit"}}}}}
    file.write_text(json.dumps(settings), "utf-8")
    file.chmod(0o600)

    override = load_config(file, {}).config.providers.openai.models["odd"]

    assert overridden(Quirks(), override) == Quirks(takes_temperature=False)


def test_windows_are_configured_known_or_cautious() -> None:
    sizes = [
        context_window("tiny", ModelOverride(context_window=4096)),
        context_window("anthropic/claude-x"),
        context_window("unheard-of", ModelOverride(vision=True)),
    ]

    assert sizes == [4096, 200_000, 64_000]


@pytest.mark.parametrize(
    "model",
    ["gpt-4o-mini", "gpt-4.1", "openai/gpt-4o", "claude-3-5-haiku-latest", "gemini-2.0-flash",
     "meta-llama/llama-3.3-70b-instruct", "qwen2.5:7b", "mistral-large-latest", "kimi-k2-0905",
     "glm-4-plus", "deepseek-coder", "anthropic.claude-3-haiku-v1:0",
     "bedrock/eu.anthropic.claude-3-5-sonnet-v2:0"],
)  # fmt: skip
def test_models_without_reasoning_are_known(model: str) -> None:
    assert reasons(model) is False


@pytest.mark.parametrize(
    "model",
    ["gpt-5", "o3-mini", "claude-3-7-sonnet", "claude-sonnet-4-5", "gemini-2.5-pro", "qwen3:8b",
     "deepseek-reasoner", "kimi-k2-thinking", "kimi-k2.5", "glm-4.6", "magistral-medium",
     "minimax-m2", "unheard-of"],
)  # fmt: skip
def test_of_others_nothing_is_claimed(model: str) -> None:
    assert reasons(model) is None


def test_a_picture_for_a_blind_model_is_told_instead(tmp_path: Path) -> None:
    image = Image(str(tmp_path / "cat.png"), "image/png")

    (wire,) = wire_messages(
        [UserMessage("What is it?", (image,))],
        pictures={image: "data:image/png;base64,AAAA"},
        quirks=Quirks(sees=False),
    )

    assert wire["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "text", "text": "[cat.png: not delivered, this model takes no pictures]"},
    ]


# -- cache markers ----------------------------------------------------------------------------


def test_markers_stand_at_the_system_prompt_the_end_and_the_former_end() -> None:
    talk = wire_messages(
        [
            SystemMessage("You help."),
            UserMessage("one"),
            AssistantMessage("1"),
            UserMessage("two"),
            AssistantMessage("2"),
            UserMessage("three"),
        ]
    )

    sent = marked(talk, frozenset({"system", "user"}))

    assert [(one["role"], marks(one)) for one in sent] == [
        ("system", [MARK]),
        ("user", [None]),
        ("assistant", []),
        ("user", [MARK]),
        ("assistant", []),
        ("user", [MARK]),
    ]


def marks(message: dict[str, object]) -> list[object]:
    content = message["content"]
    return [part.get("cache_control") for part in content] if isinstance(content, list) else []


def test_empty_text_and_other_roles_carry_no_marker() -> None:
    talk = wire_messages(
        [
            SystemMessage(" "),
            UserMessage("one"),
            AssistantMessage("", (ToolCall("c1", "look", "{}"),)),
            ToolMessage("c1", "look", "a cat"),
        ]
    )

    sent = marked(talk, frozenset({"system", "user"}))

    assert [marks(one) for one in sent] == [[], [MARK], [], []]
    assert sent[3] == talk[3]


# -- thinking blocks --------------------------------------------------------------------------


def test_fragments_are_joined_into_blocks() -> None:
    blocks = ThinkingBlocks()
    for fragment in (
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "thinking", "thinking": ", so", "signature": ""},
        {"type": "thinking", "thinking": "", "signature": "signed"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "redacted_thinking", "data": "more"},
        {"type": "thinking", "thinking": "Again", "signature": ""},
        {"type": "thinking", "thinking": "", "signature": "signed, too"},
        {"type": "thinking", "thinking": "And again", "signature": "at once"},
    ):
        blocks.add(fragment)

    assert blocks.whole() == (
        {"type": "thinking", "thinking": "Hm, so", "signature": "signed"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "redacted_thinking", "data": "more"},
        {"type": "thinking", "thinking": "Again", "signature": "signed, too"},
        {"type": "thinking", "thinking": "And again", "signature": "at once"},
    )


def test_thinking_waits_until_no_call_without_thoughts_is_open() -> None:
    claude = Quirks(reasoning_back=ReasoningBack.BLOCKS)
    call = (ToolCall("c1", "look", "{}"),)
    signed = ({"type": "thinking", "thinking": "Hm", "signature": "signed"},)
    bare: list[ChatMessage] = [
        UserMessage("x"),
        AssistantMessage("", call),
        ToolMessage("c1", "look", "a cat"),
    ]
    thought: list[ChatMessage] = [UserMessage("x"), AssistantMessage("", call, "Hm", signed)]

    assert [
        may_think(bare, claude),
        may_think(bare, Quirks()),
        may_think(thought, claude),
        may_think([*bare, AssistantMessage("A cat."), UserMessage("y")], claude),
        may_think([UserMessage("x")], claude),
    ] == [False, True, True, True, True]
