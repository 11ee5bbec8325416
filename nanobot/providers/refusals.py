"""What endpoints have refused, remembered across processes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from loguru import logger

from nanobot.core.ports import Clock
from nanobot.store.files import write_atomic

REMEMBERED = timedelta(days=30)
"""After this time a refusal is forgotten: the server, or our request, may have changed."""
EVERY_MODEL = "*"

_Known: TypeAlias = dict[str, dict[str, dict[str, datetime]]]


def _now() -> datetime:
    return datetime.now(UTC)


class Refusals:
    """The request fields and message orders that each endpoint refuses, by model.

    All adapters of an app share one. The file at ``path`` is a cache: anyone may delete it, and a
    damaged one counts as empty. Without ``path`` nothing outlives the process.
    """

    def __init__(self, path: Path | None = None, *, now: Clock = _now) -> None:
        self._path = path
        self._now = now
        self._known: _Known | None = None

    def of(self, endpoint: str, model: str) -> frozenset[str]:
        """What ``endpoint`` has refused for ``model``, or for every model, in the last 30 days."""
        since = self._now() - REMEMBERED
        models = self._loaded().get(endpoint, {})
        learned = {**models.get(EVERY_MODEL, {}), **models.get(model, {})}
        return frozenset(name for name, at in learned.items() if at > since)

    def add(self, endpoint: str, model: str, refused: Iterable[str]) -> None:
        """Remember that ``endpoint`` has refused these for ``model`` just now.

        ``model`` may be ``EVERY_MODEL``.
        """
        known = self._loaded()
        known.setdefault(endpoint, {}).setdefault(model, {}).update(
            dict.fromkeys(refused, self._now())
        )
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = json.dumps(known, default=datetime.isoformat, indent=1).encode()
            write_atomic(self._path, data, durable=False)
        except OSError as error:
            logger.warning("what {} refused is not remembered: {}", endpoint, error)

    def _loaded(self) -> _Known:
        if self._known is None:
            self._known = {} if self._path is None else _read(self._path)
        return self._known


def _read(path: Path) -> _Known:
    from pydantic import AwareDatetime, TypeAdapter, ValidationError  # takes 0.1 s to import

    try:
        known: _Known = TypeAdapter(dict[str, dict[str, dict[str, AwareDatetime]]]).validate_json(
            path.read_bytes()
        )
    except (OSError, ValidationError):
        return {}
    return known
