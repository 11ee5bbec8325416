"""How a call of the Bot API can fail, as far as it matters to whoever called.

CallFailed
├── NotSent       the request certainly was not taken
│   └── PoolFull  no connection of the pool became free
├── NoAnswer      the request may have been taken
└── Refusal       the server answered with an error
"""

from __future__ import annotations


class CallFailed(Exception):
    """A call failed; ``str(error)`` is one line for the operator, without the token."""


class NotSent(CallFailed):
    """The request never reached the server: no connection, or something else answered."""


class PoolFull(NotSent):
    """No connection of the pool became free in time."""


class NoAnswer(CallFailed):
    """The connection broke, or time passed, or the answer cannot be read."""


class Refusal(CallFailed):
    """The server answered with the HTTP status ``code`` and a description.

    ``after``: seconds it asked to wait, or None.
    """

    def __init__(self, code: int, description: str, *, after: float | None = None) -> None:
        super().__init__(description)
        self.code = code
        self.after = after

    @property
    def is_of_token(self) -> bool:
        """Whether the token itself is refused: 401 if it is unknown, 404 if it is no token."""
        return self.code in (401, 404)

    @property
    def is_of_server(self) -> bool:
        """Whether the server is at fault, so that it may have done what it was asked."""
        return self.code >= 500
