"""One cheap request to a model endpoint, to see whether it answers and takes the key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

LIMIT_S = 5.0


class Verdict(Enum):
    """What the endpoint made of the request."""

    ANSWERS = auto()
    REFUSES = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Checked:
    """What was learnt: a sentence for the person, and the models that the endpoint lists."""

    verdict: Verdict
    sentence: str
    models: tuple[str, ...] = ()


def check_endpoint(base: str, key: str, *, limit_s: float = LIMIT_S) -> Checked:
    """Ask for the list of models (OpenAI's ``GET /models``) and wait at most ``limit_s``."""
    done: SimpleQueue[Checked] = SimpleQueue()
    # Looking up a name has no time-out of its own; a thread can be left behind, and ends alone.
    asking = Thread(target=lambda: done.put(_ask(base, key, limit_s)), daemon=True)
    asking.start()
    try:
        return done.get(timeout=limit_s)
    except Empty:
        return Checked(Verdict.UNKNOWN, f"{base} did not answer within {limit_s:g} s")


def _ask(base: str, key: str, limit_s: float) -> Checked:
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.get(f"{base.rstrip('/')}/models", headers=headers, timeout=limit_s)
    except httpx.TimeoutException:
        return Checked(Verdict.UNKNOWN, f"{base} did not answer within {limit_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        reason = str(error) or type(error).__name__
        return Checked(Verdict.UNKNOWN, f"{base} cannot be reached: {reason}")
    status = response.status_code
    if status in (401, 403):
        said = "this key" if key else "requests without a key"
        return Checked(Verdict.REFUSES, f"{base} does not accept {said} ({status})")
    models = _ids(response.content)
    if status != 200 or models is None:
        return Checked(Verdict.UNKNOWN, f"{base} gives no list of models (status {status})")
    counted = "1 model" if len(models) == 1 else f"{len(models)} models"
    return Checked(Verdict.ANSWERS, f"{base} answers and lists {counted}", models)


def _ids(body: bytes) -> tuple[str, ...] | None:
    """The ids in OpenAI's list of models, or None where this is no such list."""
    try:
        document: Any = json.loads(body)
        return tuple(str(model["id"]) for model in document["data"])
    except (ValueError, KeyError, TypeError):
        return None
