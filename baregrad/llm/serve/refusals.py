"""What a client is told when its request cannot be answered."""

from __future__ import annotations

from typing import Any

from baregrad.base.errors import (
    ArgumentError,
    BaregradError,
    FileFormatError,
    IndexOutOfRange,
    QueueFull,
    UnsupportedError,
)

# The names that Anthropic's clients know statuses by.
_ANTHROPIC = (
    (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
    (404, "not_found_error"), (413, "request_too_large"), (429, "rate_limit_error"),
)


class RequestRefused(Exception):
    """A request that is not answered: its status, and why.

    `param` is the field that is wrong and `code` a word for programs, where there is one.
    """

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "invalid_request_error",
        param: str | None = None, code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the error as OpenAI's clients read it."""
        return {"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        }}

    def anthropic_body(self) -> dict[str, Any]:
        """Return the error as Anthropic's clients read it."""
        other = "invalid_request_error" if self.status < 500 else "api_error"
        kind = next((kind for status, kind in _ANTHROPIC if status == self.status), other)
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def stopping() -> RequestRefused:
    """Return what clients are told whose answers a server that stops can no longer wait for."""
    return RequestRefused("the server is stopping", status=503, kind="server_error")


def refusal_of(error: BaseException) -> RequestRefused:
    """Return what a client is told of an error.

    Mistakes of the request are 400: clients send what was 500 again, and it would fail again.
    """
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, QueueFull):
        return RequestRefused(
            str(error), status=429, kind="rate_limit_error", code="queue_full"
        )
    if isinstance(error, ArgumentError | IndexOutOfRange | UnsupportedError | FileFormatError):
        code = "context_length_exceeded" if "longer than the context" in str(error) else None
        return RequestRefused(str(error), code=code)
    message = str(error) if isinstance(error, BaregradError) else "the server made a mistake"
    return RequestRefused(message, status=500, kind="server_error")
