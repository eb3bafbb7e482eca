"""The errors of this package: one class for each case that a caller may want to handle differently.

What must stay true: no message contains a token.
"""

from __future__ import annotations


class CofferdamError(Exception):
    """The base of all errors of this package."""


class ApiError(CofferdamError):
    """The sidecar refused a request."""

    def __init__(self, status: int, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.status = status
        #: A stable code.
        self.code = code
        #: What failed, and why.
        self.message = message
        #: What to do next.
        self.hint = hint


class UnauthorizedError(ApiError):
    """The token is missing, wrong, expired or not for this grant."""


class NotFoundError(ApiError):
    """There is no such session, enrolment, attachment or grant, or the token may not see it."""


class UnreachableError(CofferdamError):
    """There is no sidecar at the address, or the connection to it was lost."""


class DeadlineError(CofferdamError):
    """The sidecar, or the sandbox, took longer than the timeout allows."""


class AttachmentError(CofferdamError):
    """The sandbox could not be attached, or its attachment has ended; waiting longer would not help."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        #: A cause of the API (`no-sandbox`, `unauthorized`, ...), or the state `suspended` or `refused`.
        self.cause = cause


class ProtocolError(CofferdamError):
    """The response does not follow Cofferdam's admin API."""


class SettingsError(CofferdamError, ValueError):
    """The arguments or the environment do not determine how to reach the sidecar, or which sandbox is meant."""
