"""Assembles an answer of OpenAI's chat completions, with its reasoning, from its chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from nanobot.core.chat import FinishReason, LLMResponse, ToolCall, Usage
from nanobot.core.events import Emit, ReasoningDelta, TextDelta
from nanobot.providers.failures import EndpointRefused, Garbled, failure_in_document
from nanobot.providers.wire import nine_characters

_CUT_BY_LENGTH = {"length", "max_tokens", "model_length"}
_FILTERED = {"content_filter", "safety", "sensitive", "prohibited_content"}
_BROKEN = {"error", "network_error"}
# Limits for one call; an endpoint that reports more is defective.
_MOST_TOKENS = 10**9
_MOST_DOLLARS = 10**6


@dataclass(slots=True)
class _Call:
    """A tool call while it arrives."""

    index: int | None
    id: str = ""
    name: str = ""
    fragments: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


class Answer:
    """One answer while it arrives; passes deltas to ``emit`` as soon as they are certain."""

    def __init__(self, *, model: str, taken_ids: Iterable[str], emit: Emit) -> None:
        """``model``: the requested one; ``taken_ids``: ids of the conversation's tool calls."""
        self._model = model
        self._taken_ids = set(taken_ids)
        self._emit = emit
        self._text = _Surrogates()
        self._thought = _Surrogates()
        self._thinking = ThinkSplitter()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._blocks = ThinkingBlocks()
        self._calls: list[_Call] = []
        self._usage: Usage | None = None
        self._finish = ""

    @property
    def has_begun(self) -> bool:
        """Whether anything of the answer has arrived."""
        return bool(self._content or self._reasoning or self._calls)

    @property
    def is_finished(self) -> bool:
        """Whether the finish reason has arrived."""
        return bool(self._finish)

    @property
    def was_filtered(self) -> bool:
        return self._finish in _FILTERED

    @property
    def was_broken_off(self) -> bool:
        """Whether the endpoint itself reports the answer as incomplete."""
        return self._finish in _BROKEN

    def add(self, document: Any, *, whole: bool = False) -> None:
        """Add a chunk, or the ``whole`` completion.

        Raises EndpointRefused where it is an error, Garbled where it is neither.
        """
        if not isinstance(document, Mapping):
            raise Garbled(json.dumps(document))
        if document.get("error") or document.get("object") == "error":
            raise EndpointRefused(failure_in_document(0, document))
        choices = document.get("choices")
        if whole and not choices:
            raise EndpointRefused(failure_in_document(0, document))
        if isinstance(model := document.get("model"), str) and model:
            self._model = _mended(model)
        self._take_usage(document)
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return
        self._take_usage(choice)
        self._take_delta(choice.get("message" if whole else "delta"))
        if isinstance(finish := choice.get("finish_reason"), str) and finish:
            self._finish = finish.lower()
        elif whole:
            self.finish()

    def finish(self) -> None:
        """Mark the answer as complete, also without a finish reason."""
        self._finish = self._finish or "stop"

    def response(self) -> LLMResponse:
        """The whole answer; call it once, at the end."""
        self._add_text(self._thinking.feed(self._text.end()))
        self._add_text(self._thinking.end())
        self._add_reasoning(self._thought.end())
        calls = self._tool_calls()
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return LLMResponse(
            content="".join(self._content),
            tool_calls=calls,
            finish_reason=FinishReason.LENGTH if self._finish in _CUT_BY_LENGTH else finish,
            usage=self._usage,
            reasoning_content="".join(self._reasoning),
            thinking_blocks=tuple(map(_mended_block, self._blocks.whole())),
            model=self._model,
        )

    def _take_delta(self, delta: Any) -> None:
        if not isinstance(delta, Mapping):
            return
        self._add_reasoning(
            self._thought.add(_text(delta.get("reasoning_content") or delta.get("reasoning")))
        )
        for fragments in ("reasoning_details", "thinking_blocks"):
            for fragment in _mappings(delta.get(fragments)):
                self._blocks.add(fragment)
        for field_name in ("content", "refusal"):
            self._take_content(delta.get(field_name))
        for call in _mappings(delta.get("tool_calls")):
            self._take_call(call)

    def _take_content(self, content: Any) -> None:
        """Content is text or, with Mistral's reasoning models, a list of parts."""
        if isinstance(content, str):
            self._add_text(self._thinking.feed(self._text.add(content)))
        for part in _mappings(content):
            if part.get("type") == "thinking":
                for thought in _mappings(part.get("thinking")):
                    self._add_reasoning(self._thought.add(_text(thought.get("text"))))
            else:
                self._take_content(_text(part.get("text")))

    def _add_text(self, split: Split) -> None:
        self._add_reasoning(split.reasoning)
        if split.answer:
            self._content.append(split.answer)
            self._emit(TextDelta(split.answer))

    def _add_reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._emit(ReasoningDelta(text))

    def _take_call(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function")
        function = function if isinstance(function, Mapping) else {}
        identity, name = _text(delta.get("id")), _text(function.get("name"))
        arguments = _text(function.get("arguments"))
        index = delta.get("index")
        call = self._call_of(index if isinstance(index, int) else None, identity, name, arguments)
        call.id = call.id or identity
        if name and name != call.name and not call.fragments:
            call.name += name
        if arguments:
            call.fragments.append(arguments)

    def _call_of(self, index: int | None, identity: str, name: str, arguments: str) -> _Call:
        """The call that a delta continues, or a new one.

        Normally the index decides. Some endpoints omit it or send 0 for each call: there a name
        begins a new call if its id differs, or if it has arguments and those so far are complete.
        """
        if index is not None:
            known = next((call for call in reversed(self._calls) if call.index == index), None)
        elif identity and any(call.id == identity for call in self._calls):
            known = next(call for call in self._calls if call.id == identity)
        else:
            known = self._calls[-1] if self._calls else None
        if known is not None and name:
            if identity and known.id:
                is_new = identity != known.id
            else:
                is_new = bool(arguments.strip()) and _is_object(known.arguments)
            known = None if is_new else known
        if known is None:
            known = _Call(index)
            self._calls.append(known)
        return known

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, with ids unique in the conversation; calls without a name are dropped."""
        calls = []
        for call in self._calls:
            if not call.name:
                continue
            arguments = _mended(call.arguments)
            identity = _mended(call.id)
            if not identity or identity in self._taken_ids:
                identity = self._new_id(f"{identity}:{call.name}:{arguments}")
            self._taken_ids.add(identity)
            calls.append(ToolCall(identity, _mended(call.name), arguments))
        return tuple(calls)

    def _new_id(self, seed: str) -> str:
        number = len(self._taken_ids)
        while (identity := nine_characters(f"{number}:{seed}")) in self._taken_ids:
            number += 1
        return identity

    def _take_usage(self, holder: Mapping[str, Any]) -> None:
        """Read the usage beside the choices, inside a choice (Moonshot) or in ``x_groq``."""
        usage = holder.get("usage")
        apart = holder.get("x_groq")
        if usage is None and isinstance(apart, Mapping):
            usage = apart.get("usage")
        if not isinstance(usage, Mapping):
            return
        details = usage.get("prompt_tokens_details")
        cost: Any = usage.get("cost")
        is_cost = type(cost) in (int, float) and 0 <= cost <= _MOST_DOLLARS
        self._usage = Usage(
            input_tokens=_number(usage.get("prompt_tokens")),
            output_tokens=_number(usage.get("completion_tokens")),
            cached_tokens=_number(
                details.get("cached_tokens") if isinstance(details, Mapping) else 0
            )
            or _number(usage.get("prompt_cache_hit_tokens"))
            or _number(usage.get("cached_tokens")),
            cost_usd=float(cost) if is_cost else None,
        )


class _Surrogates:
    """Joins surrogates: JSON escapes may split a character beyond U+FFFF between two chunks."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: str) -> str:
        """``text`` as valid Unicode; a high surrogate at its end is held for the next chunk."""
        text = self._held + text
        self._held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return _mended(text[: len(text) - len(self._held)])

    def end(self) -> str:
        held, self._held = self._held, ""
        return _mended(held)


def _mended(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced, so that it is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _mended_block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """A block with all its texts mended."""
    text = json.dumps(block, ensure_ascii=False)
    mended = _mended(text)
    whole: Mapping[str, Any] = block if mended == text else json.loads(mended)
    return whole


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _number(value: Any) -> int:
    """A count of tokens; 0 for anything else."""
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


_JOINED = ("text", "summary", "thinking")


class ThinkingBlocks:
    """Assembles reasoning blocks, which a provider wants back, from streamed fragments."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []

    def add(self, fragment: Mapping[str, Any]) -> None:
        """Add a fragment, which continues the last block or begins a new one.

        OpenRouter numbers its blocks (``index``); Anthropic's ``thinking`` ends with its signature.
        """
        last = self._blocks[-1] if self._blocks else {}
        keys = [key for key in _JOINED if key in fragment and key in last]
        ended = "thinking" in keys and bool(last.get("signature"))
        if not keys or ended or any(last.get(k) != fragment.get(k) for k in ("type", "index")):
            self._blocks.append(dict(fragment))
            return
        joined = {key: (last[key] or "") + (fragment[key] or "") for key in keys}
        told = {key: value for key, value in fragment.items() if value not in (None, "")}
        self._blocks[-1] = last | told | joined

    def whole(self) -> tuple[Mapping[str, Any], ...]:
        """The blocks so far."""
        return tuple(self._blocks)


_OPEN = "<think>"
_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Split:
    """The reasoning in a piece of text, and the answer after it."""

    reasoning: str = ""
    answer: str = ""


class _Place(Enum):
    START = auto()
    REASONING = auto()
    GAP = auto()
    ANSWER = auto()


class ThinkSplitter:
    """Splits one answer, given in any pieces, at its think tags.

    Only a tag at the beginning (after white space) counts; a later one is part of the answer.
    White space between the closing tag and the answer is dropped.
    """

    def __init__(self) -> None:
        self._place = _Place.START
        self._held = ""

    def feed(self, text: str) -> Split:
        """The certain part; up to a tag's length of text may be held back."""
        self._held += text
        reasoning = ""
        if self._place is _Place.START:
            self._start()
        if self._place is _Place.REASONING:
            reasoning = self._reason()
        if self._place is _Place.GAP:
            self._held = self._held.lstrip()
            if self._held:
                self._place = _Place.ANSWER
        if self._place is not _Place.ANSWER:
            return Split(reasoning)
        answer, self._held = self._held, ""
        return Split(reasoning, answer)

    def end(self) -> Split:
        """The text held back, at the end."""
        held, self._held = self._held, ""
        return Split(reasoning=held) if self._place is _Place.REASONING else Split(answer=held)

    def _start(self) -> None:
        text = self._held.lstrip()
        if text.startswith(_OPEN):
            self._place = _Place.REASONING
            self._held = text[len(_OPEN) :]
        elif not _OPEN.startswith(text):
            self._place = _Place.ANSWER

    def _reason(self) -> str:
        before, tag, after = self._held.partition(_CLOSE)
        if tag:
            self._place = _Place.GAP
            self._held = after
            return before
        kept = next(
            length for length in range(len(_CLOSE) - 1, -1, -1) if before.endswith(_CLOSE[:length])
        )
        cut = len(before) - kept
        self._held = before[cut:]
        return before[:cut]
