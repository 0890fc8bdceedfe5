"""The one check that every native status goes through."""

from __future__ import annotations

from typing import Any

from specframe.backends.llama.log import native_log
from specframe.core.errors import BackendError


class NativeCallError(BackendError):
    """A call into llama.cpp answered with a failure."""

    def __init__(self, message: str, *, op: str, code: int | None) -> None:
        super().__init__(message)
        self.op = op
        self.code = code


#: ``llama_decode``, ``llama_encode`` and ``llama_process``.
PROCESS_CODES = {
    1: "no room for the batch in the memory",
    2: "stopped by the abort callback",
    -1: "invalid batch",
    -2: "the compute buffers could not be allocated",
    -3: "the graph failed to compute",
}

#: ``llama_batch_ext_add*``.
BATCH_CODES = {-1: "the batch is full", -2: "invalid token or embedding", -3: "invalid sequence id"}


def check(code: int, *, op: str, meanings: dict[int, str] = PROCESS_CODES, **context: object) -> int:
    """Pass a native status on, or raise.

    Args:
        code: what the native call answered; 0 is success, and for ``BATCH_CODES`` every index from 0 up is.
        op: what was attempted, for the message.
        meanings: the words for the codes of this call.
        **context: values that help to understand the failure, quoted in the message.

    Returns:
        ``code``, when it is a success.

    Raises:
        BackendError: it is not; ``code`` and ``op`` are attributes of the error.
    """
    if code == 0 or (code > 0 and code not in meanings):
        return code
    raise _failure(op, meanings.get(code, "unknown status"), code, context)


def failure(op: str, *, meaning: str, code: int | None = None, **context: object) -> NativeCallError:
    """The error for a native call that failed, quoting what the library logged about it."""
    return _failure(op, meaning, code, context)


def _failure(op: str, meaning: str, code: int | None, context: dict[str, object]) -> NativeCallError:
    status = "" if code is None else f" with status {code}"
    details = ", ".join(f"{name}={value!r}" for name, value in context.items())
    message = f"{op} failed{status}: {meaning}" + (f" ({details})" if details else "")
    lines = native_log.take()
    if lines:
        message += "; llama.cpp says: " + " | ".join(lines)
    return NativeCallError(message, op=op, code=code)


def present(handle: Any, *, op: str, meaning: str, **context: object) -> Any:
    """Pass a native pointer on, or raise BackendError when it is NULL."""
    if not handle:
        raise _failure(op, meaning, None, context)
    return handle
