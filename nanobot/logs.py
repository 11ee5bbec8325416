"""Logging: loguru, one line an event with session and message ids, secrets masked."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from loguru import logger

from nanobot.safety.redaction import Redactor
from nanobot.store.home import Home

if TYPE_CHECKING:
    from loguru import Record

_QUIET = ("httpx", "httpcore", "telegram", "asyncio", "LiteLLM", "openai", "markdown_it")
_IDS = ("session", "inbound", "outbound", "channel", "job")


def log_nowhere() -> None:
    """For commands whose output is their answer."""
    logger.remove()
    logging.getLogger().addHandler(logging.NullHandler())


def log_to_stderr(secrets: Iterable[str], *, verbose: bool = False) -> None:
    """For ``--logs`` and a gateway in the foreground."""
    logger.remove()
    logger.add(
        sys.stderr,
        format=_formatter(Redactor(secrets)),
        level="DEBUG" if verbose else "INFO",
        colorize=False,
        diagnose=False,
    )
    _adopt_stdlib()


def log_to_file(home: Home, secrets: Iterable[str], *, verbose: bool = False) -> None:
    """For a gateway: a file (0600) in the home, rotated at 10 MB, ten kept."""
    logger.add(
        home.private(home.logs) / "gateway.log",
        format=_formatter(Redactor(secrets)),
        level="DEBUG" if verbose else "INFO",
        rotation="10 MB",
        retention=10,
        diagnose=False,
        encoding="utf-8",
        opener=lambda path, flags: os.open(path, flags, 0o600),
    )


def _formatter(redactor: Redactor) -> Callable[[Record], str]:
    """One line an event; the traceback of an error follows it, masked like the rest."""

    def render(record: Record) -> str:
        extra = record["extra"]
        ids = "".join(f" {name}={extra[name]}" for name in _IDS if extra.get(name))
        text = f"{record['time']:YYYY-MM-DD HH:mm:ss.SSS} {record['level'].name:<8} "
        text += record["message"].replace("\n", "\\n") + ids
        if (failure := record["exception"]) is not None:
            lines = traceback.format_exception(failure.type, failure.value, failure.traceback)
            text += "\n" + "".join(lines).rstrip()
        extra["line"] = redactor.mask(text)
        return "{extra[line]}\n"

    return render


class _ToLoguru(logging.Handler):
    """Hands the records of libraries that use the standard logging to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        level: str | int = record.levelno
        if record.levelname in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
            level = record.levelname
        logger.opt(exception=record.exc_info).log(level, "{}: {}", record.name, record.getMessage())


def _adopt_stdlib() -> None:
    """Route the standard logging here; libraries that log URLs and bodies only warn."""
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.INFO, force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
