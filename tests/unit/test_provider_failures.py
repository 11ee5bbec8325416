"""Tests of classifying what endpoints say when they fail, and of asking for less."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.core.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    ProviderError,
    Refused,
    RetryLater,
)
from nanobot.providers.failures import (
    Endpoint,
    Failure,
    classify,
    failure_in_body,
    failure_in_document,
    retry_after,
)
from nanobot.providers.quirks import Options, Quirks, without_refused

KEY = "sk-fake-0123456789abcdef"
ENDPOINT = Endpoint("acme", "https://me:pass-word@acme.test/v1/chat/completions?v=1", (KEY,))
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def body(message: str, code: Any = None, kind: str = "x", **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "code": code, **more}}).encode()


def error(status: int, content: bytes, after: float | None = None) -> ProviderError:
    return classify(failure_in_body(status, content, after), ENDPOINT, "model-1")


@pytest.mark.parametrize(
    ("status", "content"),
    [
        # OpenAI, DeepSeek, older vLLM
        (400, body("Your input is too much.", "context_length_exceeded")),
        (
            400,
            body(
                "This model's maximum context length is 65536 tokens. However, you requested 70000 "
                "tokens (69000 in the messages, 1000 in the completion)."
            ),
        ),
        # vLLM
        (
            400,
            json.dumps(
                {
                    "object": "error",
                    "message": "The decoder prompt (length 9000) is longer than the maximum model "
                    "length of 8192.",
                    "type": "BadRequestError",
                    "code": 400,
                }
            ).encode(),
        ),
        # llama.cpp
        (400, body("the request exceeds the available context size", 400)),
        (500, body("the request exceeds the available context size. try increasing", 500)),
        (400, body("request (131168 tokens) exceeds the available context size (131072 tokens)")),
        # LM Studio
        (
            400,
            json.dumps(
                {
                    "error": "Trying to keep the first 5000 tokens when context the overflows. "
                    "However, the model is loaded with context length of only 4096 tokens."
                }
            ).encode(),
        ),
        (
            400,
            b'{"error": "The number of tokens to keep from the initial prompt is greater than '
            b'the context length."}',
        ),
        # Ollama
        (400, body("prompt too long; exceeded max context length by 17 tokens")),
        (500, body("the input length exceeds the context length")),
        # Groq, Cerebras, GitHub Models, a proxy in front
        (400, body("Please reduce the length of the messages or completion.", "x")),
        (413, body("Request too large for model `m` on tokens per minute", "rate_limit_exceeded")),
        (413, body("Max size: 8000 tokens.", "tokens_limit_reached")),
        (413, b"<html><head><title>413 Request Entity Too Large</title></head></html>"),
        # Mistral, xAI, Moonshot, Zhipu, DashScope, MiniMax, Together
        (
            400,
            b'{"object":"error","message":"Prompt contains 40000 tokens and 0 draft tokens, too '
            b'large for model with 32768 maximum context length","type":"invalid_request_error"}',
        ),
        (
            400,
            b'{"code":"x","error":"This model\'s maximum prompt length is 131072 but the request '
            b'contains 140000 tokens."}',
        ),
        (400, body("Invalid request: Your request exceeded model token limit: 8192")),
        (400, body("Prompt 超长", "1261")),
        (400, body("Range of input length should be [1, 30720]", "invalid_parameter_error")),
        (400, body("invalid params, context window exceeds limit (2013)")),
        (422, body("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097.")),
        # Anthropic and Gemini behind gateways, also second-hand
        (400, body("prompt is too long: 208310 tokens > 200000 maximum")),
        (400, body("input length and `max_tokens` exceed context limit: 199990 + 64 > 200000")),
        (400, body("The input token count (1048577) exceeds the maximum number of tokens allowed")),
        (400, body("Input is too long for requested model.")),
        (
            400,
            body(
                "Provider returned error",
                400,
                metadata={"raw": '{"error":{"message":"prompt is too long: 9 tokens > 8"}}'},
            ),
        ),
    ],
)
def test_what_does_not_fit_the_window_is_an_overflow(status: int, content: bytes) -> None:
    assert type(error(status, content)) is ContextOverflow


@pytest.mark.parametrize(
    ("status", "content", "kind", "words"),
    [
        (401, body("Incorrect API key", "invalid_api_key"), AuthFailed, "accept the API key"),
        (401, b"", AuthFailed, "accept the API key (401: an empty body)"),
        (403, body("Country not supported", "x"), AuthFailed, "allow this with the API key"),
        (403, body("Your chosen model requires moderation", 403), Refused, "content filter"),
        (402, body("Insufficient Balance"), AuthFailed, "no credit or quota is left"),
        (429, body("You exceeded your quota", "insufficient_quota"), AuthFailed, "no credit"),
        (429, body("余额不足", "1113"), AuthFailed, "no credit or quota is left"),
        (429, body("You exceeded your current quota", 429), RetryLater, "limits the rate"),
        (400, body("filtered", "content_filter"), Refused, "content filter"),
        (400, body("bad words", "data_inspection_failed"), Refused, "content filter"),
        (404, b'{"error":{"message":"model \'model-1\' not found"}}', BadRequest, "'model-1' at "),
        (404, b"404 page not found", BadRequest, "no model 'model-1' at https://acme.test/v1/chat"),
        (400, body("x is not valid", "invalid_value"), BadRequest, "refuses the request"),
        (422, b'{"detail":[{"loc":["body"],"msg":"bad"}]}', BadRequest, '422: [{"loc": ["body"]'),
        (405, b"", BadRequest, "refuses the request"),
        (307, b"", BadRequest, "leads elsewhere"),
        (408, b"", RetryLater, "cannot answer now"),
        (409, b"", RetryLater, "cannot answer now"),
        (425, b"", RetryLater, "cannot answer now"),
        (429, b"slow down", RetryLater, "limits the rate (429: slow down)"),
        (500, body("boom"), RetryLater, "cannot answer now (500: boom)"),
        (502, b"<html><title>502 Bad Gateway</title></html>", RetryLater, "502 Bad Gateway"),
        (503, b"", RetryLater, "cannot answer now"),
        (529, body("Overloaded"), RetryLater, "cannot answer now (529: Overloaded)"),
        (599, b'[{"error": {"message": "in a list"}}]', RetryLater, "in a list"),
    ],
)
def test_each_refusal_has_its_class_and_words(
    status: int, content: bytes, kind: type[ProviderError], words: str
) -> None:
    found = error(status, content, after=3.5)

    assert type(found) is kind
    assert str(found).startswith("acme") and words in str(found)
    assert not isinstance(found, RetryLater) or found.after == 3.5


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"error": {"message": "m", "code": "server_error"}}, RetryLater),
        ({"error": {"message": "m", "code": "rate_limit_exceeded"}}, RetryLater),
        ({"error": {"message": "m", "code": 502}}, RetryLater),
        ({"error": "m"}, RetryLater),
        ({}, RetryLater),
        ({"error": {"message": "m", "code": "context_length_exceeded"}}, ContextOverflow),
        ({"error": {"message": "prompt is too long: 9 > 8"}}, ContextOverflow),
        ({"error": {"message": "m", "type": "authentication_error"}}, AuthFailed),
        ({"error": {"message": "m", "code": 401}}, AuthFailed),
        ({"error": {"message": "m", "code": "insufficient_quota"}}, AuthFailed),
        ({"error": {"message": "m", "code": "model_not_found"}}, BadRequest),
        ({"error": {"message": "m", "type": "BadRequestError", "code": 400}}, BadRequest),
        ({"error": {"message": "m", "type": "invalid_request_error"}}, BadRequest),
        ({"error": {"message": "m", "code": "content_filter"}}, Refused),
    ],
)
def test_an_error_without_a_status_goes_by_its_codes(
    document: dict[str, Any], kind: type[ProviderError]
) -> None:
    found = classify(failure_in_document(0, document), ENDPOINT, "model-1")

    assert type(found) is kind


def test_a_refused_key_says_what_to_type() -> None:
    assert str(error(401, body("no such key"))) == (
        "acme does not accept the API key (401: no such key); "
        "set the key: nanobot config set providers.acme.apiKey KEY"
    )


def test_the_hint_survives_a_long_explanation() -> None:
    text = str(error(401, body("x" * 5000)))

    assert len(text) == 300
    assert text.endswith("x…); set the key: nanobot config set providers.acme.apiKey KEY")


def test_secrets_are_masked_wherever_they_stand() -> None:
    endpoint = Endpoint("acme", ENDPOINT.url, (KEY, "header-secret-value", "ollama"))
    said = f"key {KEY}, header-secret-value, sk-other-key-0123456789 and sk-proj-****cdef, ollama"

    text = str(classify(failure_in_body(400, body(said)), endpoint, "model-1"))

    assert text == ("acme refuses the request for model-1 (400: key ***, ***, *** and ***, ollama)")


def test_a_secret_cut_by_the_length_of_the_line_does_not_show() -> None:
    for length in range(150, 300):
        text = str(error(400, body("x" * length + " " + KEY)))

        assert "sk-fake" not in text


@given(st.integers(300, 599), st.text(), st.text(max_size=400))
def test_any_error_text_is_one_line_of_bounded_length(
    status: int, message: str, model: str
) -> None:
    failure = failure_in_body(status, body(message))

    text = str(classify(failure, ENDPOINT, model))

    assert 0 < len(text) <= 300
    assert text.isprintable() and "pass-word" not in text


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:35 GMT"}, 30.0),
        ({"retry-after": "Fri, 02 Jan 2026 03:00:00 GMT"}, 0.0),
        (
            {
                "retry-after": "Fri, 02 Jan 2026 05:00:10 GMT",
                "date": "Fri, 02 Jan 2026 05:00:00 GMT",
            },
            10.0,
        ),
        ({"x-ratelimit-reset-requests": "9s"}, None),
    ],
)
def test_the_wait_is_read_in_each_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


def options(max_tokens: int = 8192, **changes: Any) -> Options:
    return Options(max_tokens, 0.7, "high", Quirks(), **changes)


def test_options_become_fields_in_a_fixed_order() -> None:
    assert list(options().fields().items()) == [
        ("stream", True),
        ("stream_options", {"include_usage": True}),
        ("max_tokens", 8192),
        ("temperature", 0.7),
        ("reasoning_effort", "high"),
    ]


@pytest.mark.parametrize(
    ("effort", "quirks", "fields"),
    [
        (None, Quirks(), {"max_tokens": 9, "temperature": 0.7}),
        ("off", Quirks(), {"max_tokens": 9, "temperature": 0.7}),
        (
            "off",
            Quirks(effort_off="none"),
            {"max_tokens": 9, "temperature": 0.7, "reasoning_effort": "none"},
        ),
        ("low", Quirks(), {"max_tokens": 9, "temperature": 0.7, "reasoning_effort": "low"}),
        (
            None,
            Quirks(takes_max_completion_tokens=True, takes_temperature=False),
            {"max_completion_tokens": 9},
        ),
    ],
)
def test_quirks_change_the_fields(
    effort: str | None, quirks: Quirks, fields: dict[str, Any]
) -> None:
    asked = Options(9, 0.7, effort, quirks, frozenset({"stream_options"}))

    assert asked.fields() == {"stream": True, **fields}


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        (body("Unrecognized request argument supplied: stream_options"), {"stream_options"}),
        (
            b'{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"no"}]}',
            {"stream_options"},
        ),
        (
            body(
                "Unsupported parameter: 'max_tokens' is not supported. Use "
                "'max_completion_tokens' instead.",
                "unsupported_parameter",
                param="max_tokens",
            ),
            {"max_tokens"},
        ),
        (body("Unrecognized request argument: reasoning_effort"), {"reasoning_effort"}),
        (
            body("Unsupported value: 'temperature' does not support 0.7 with this model."),
            {"temperature"},
        ),
    ],
)
def test_a_refused_field_is_left_out(content: bytes, refused: set[str]) -> None:
    easier = without_refused(options(), failure_in_body(400, content))

    assert easier == options(refused=frozenset(refused))


@pytest.mark.parametrize(
    "failure",
    [
        failure_in_body(400, body("messages[3] has no role")),
        failure_in_body(400, body("temperatures rise")),
        failure_in_body(400, body("stream_options", "context_length_exceeded")),
        failure_in_body(500, body("stream_options broke the server")),
        Failure(401, "stream_options", body="stream_options"),
    ],
)
def test_other_refusals_are_not_worked_round(failure: Failure) -> None:
    assert without_refused(options(), failure) is None


def test_each_field_is_given_up_once_and_then_nothing_is_left() -> None:
    failure = failure_in_body(
        400,
        body("stream_options max_tokens max_completion_tokens reasoning_effort temperature"),
    )
    asked = options()
    given_up: list[str] = []

    while (easier := without_refused(asked, failure)) is not None:
        given_up += easier.refused - asked.refused
        asked = easier

    assert given_up == [
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "reasoning_effort",
        "temperature",
    ]
    assert asked.fields() == {"stream": True}


@pytest.mark.parametrize(
    ("said", "fewer"),
    [
        (
            "'max_tokens' is too large: 8192. This model's maximum context length is 8192 tokens "
            "and your request has 1000 input tokens (8192 > 8192 - 1000).",
            7192,
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 9192 "
            "tokens (1000 in the messages, 8192 in the completion).",
            3096,
        ),
        (
            "This model's maximum context length is 12000 tokens. However, you requested 8192 "
            "output tokens and your prompt contains at least 3809 input tokens.",
            4096,
        ),
        ("input length and `max_tokens` exceed context limit: 195000 + 8192 > 200000", 5000),
        ("max_tokens is too large: 8192. This model supports at most 4096 completion tokens", 4096),
        ("max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens", 4096),
        ("`max_tokens` must be less than or equal to `2048`, the maximum value", 2048),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8000]", 8000),
    ],
)
def test_a_shorter_answer_is_asked_for_where_only_that_does_not_fit(said: str, fewer: int) -> None:
    assert without_refused(options(), failure_in_body(400, body(said))) == options(fewer)


@pytest.mark.parametrize("prompt", [3900, 4096, 9000])
def test_a_prompt_that_leaves_no_room_is_an_overflow(prompt: int) -> None:
    failure = failure_in_body(
        400,
        body(
            f"This model's maximum context length is 4096 tokens and your request has {prompt} "
            "input tokens."
        ),
    )

    assert without_refused(options(), failure) is None
    assert type(classify(failure, ENDPOINT, "model-1")) is ContextOverflow
