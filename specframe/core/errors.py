"""Every error specframe raises on purpose, and whose fault each one is.

::

    SpecframeError
    ├── ConfigError            the caller's: a wrong option, file or combination (also a ValueError)
    │   └── RequestTooLongError    the prompt cannot fit the context, whatever is tried
    ├── StrategyError          a draft strategy's: it raised, or proposed something unusable
    ├── BackendError           the native library's or the device's: a call failed
    │   └── RollbackError          the memory could not be brought back to the committed prefix
    ├── ClosedError            you closed it, then used it
    ├── SessionPoisonedError   recovery failed: this sequence cannot continue, others can
    └── InternalError          ours: please report it
"""


class SpecframeError(Exception):
    """Base of every error raised by specframe."""


class ConfigError(SpecframeError, ValueError):
    """Something the caller asked for cannot work; the message names the key, the value and the way out."""


class RequestTooLongError(ConfigError):
    """The prompt leaves no room for a single generated token."""


class StrategyError(SpecframeError):
    """A draft strategy failed. It costs speed, never the request; ``strategy`` names the culprit."""

    def __init__(self, strategy: str, message: str) -> None:
        super().__init__(f"draft strategy {strategy!r}: {message}")
        self.strategy = strategy


class BackendError(SpecframeError):
    """A native call failed."""


class RollbackError(BackendError):
    """The memory of a sequence could not be cut or restored."""


class ClosedError(SpecframeError):
    """The object was used after ``close()``."""


class SessionPoisonedError(SpecframeError):
    """A sequence could not be brought back to a consistent state and was given up."""


class InternalError(SpecframeError):
    """An invariant of specframe itself does not hold."""
