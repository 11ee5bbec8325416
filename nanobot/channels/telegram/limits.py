"""The Telegram channel's limits, with the defaults of production."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nanobot.config.schema import TelegramConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times in seconds, sizes in connections or messages.

    A poll that is not answered ``poll_margin_s`` after the server should have answered is deaf.
    ``send_s`` is the wall clock round one message and stays well below the delivery worker's.
    """

    poll_s: int = 50
    poll_margin_s: float = 15.0
    call_s: float = 20.0
    connect_s: float = 10.0
    free_connection_s: float = 5.0
    send_s: float = 20.0
    backoff_s: float = 1.0
    backoff_most_s: float = 60.0
    refused_s: float = 60.0
    typing_every_s: float = 4.0
    typing_most_s: float = 300.0
    close_s: float = 2.0
    pools: int = 48
    pool_connections: int = 8
    chat_burst: int = 10
    chat_every_s: float = 1.0

    @classmethod
    def of(cls, config: TelegramConfig) -> Limits:
        """The limits that the owner has set, the others as they are."""
        usual = cls()
        answer_s = float(config.timeout_s)
        return replace(
            usual,
            poll_s=config.poll_timeout_s,
            poll_margin_s=min(usual.poll_margin_s, answer_s),
            call_s=answer_s,
            send_s=answer_s,
        )
