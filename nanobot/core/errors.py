"""The one error hierarchy; each error is classified once, in the adapter that knows.

NanobotError
├── ConfigError            the operator reads it; the process exits with 2
├── ProviderError          a model could not answer
│   ├── RetryLater         it may answer later (``after`` seconds, if the server said so)
│   ├── ContextOverflow    the request is larger than the model's window
│   ├── AuthFailed         the credentials are wrong or missing
│   ├── BadRequest         the endpoint refuses the request as it stands
│   └── Refused            the provider's content filter declined
├── ChannelError           a platform did not take a message
│   ├── ChannelRetryLater  it may take it later
│   └── Undeliverable      it will never take it
├── ToolError              the model reads it and adapts
├── StoreError             the state on disk cannot be used as it is
│   ├── StoreCorrupt       quarantine, go on, tell
│   └── StoreUnavailable   disk full, read-only, or the writer has died
├── JobError               a job or its schedule cannot be as it was asked for
└── GatewayError           the process that holds the home cannot be used by this one
"""

from nanobot.core.messages import Trust


class NanobotError(Exception):
    """Base of everything nanobot raises on purpose; ``str(error)`` is one readable line."""


class ConfigError(NanobotError):
    """The configuration is wrong; the text names file, key path, expectation and nearest key."""


class ProviderError(NanobotError):
    """A model call failed; ``str(error)`` says at which endpoint and why, without secrets.

    ``reached``: a model has looked at the request, so that another request may fare better.
    """

    reached = True


class RetryLater(ProviderError):
    """The call may succeed later. ``after``: seconds the server asked to wait, or None."""

    reached = False

    def __init__(self, message: str, *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class ContextOverflow(ProviderError):
    """The request does not fit the model's context window."""


class AuthFailed(ProviderError):
    """The endpoint does not accept the credentials (or there are none)."""

    reached = False


class BadRequest(ProviderError):
    """The endpoint refuses the request as it stands, or has no such model: not ``reached``."""

    def __init__(self, message: str, *, reached: bool = True) -> None:
        super().__init__(message)
        self.reached = reached


class Refused(ProviderError):
    """The provider's content filter declined to answer."""


class ChannelError(NanobotError):
    """A platform did not take a message."""


class ChannelRetryLater(ChannelError):
    """The platform may take the message later. ``after``: seconds it asked to wait, or None.

    ``maybe_sent``: the platform may have taken it (the answer never came), so that the next try
    has to be marked as a possible repetition.
    """

    def __init__(
        self, message: str, *, after: float | None = None, maybe_sent: bool = False
    ) -> None:
        super().__init__(message)
        self.after = after
        self.maybe_sent = maybe_sent


class Undeliverable(ChannelError):
    """The platform will never take this message (blocked, chat gone, forbidden)."""


class ToolError(NanobotError):
    """A tool could not do what was asked; the model reads the text, so it says how to mend it.

    ``trust`` is untrusted where the text holds words from outside.
    """

    trust: Trust = Trust.TRUSTED


class StoreError(NanobotError):
    """The state on disk cannot be used as it is."""


class StoreCorrupt(StoreError):
    """A stored file is damaged; it was put aside under the name the text gives."""


class StoreUnavailable(StoreError):
    """The disk is full or read-only, or the writer thread has died."""


class JobError(NanobotError):
    """A job or its schedule cannot be as it was asked for; the text says how to mend it."""


class GatewayError(NanobotError):
    """The process that holds this home cannot be talked to (other user, other version, busy)."""
