"""The status of an attachment, from the bytes of its connection. Does no I/O."""

from __future__ import annotations

from . import _calls, _wire
from .errors import AttachmentError, CofferdamError
from .types import AttachmentStatus


class Attached:
    """An attached sandbox. Its status changes while the sandbox is paused or its pipe is lost and found again."""

    def __init__(self) -> None:
        self._lines = _wire.Lines()
        self._status: AttachmentStatus | None = None
        self._failure: CofferdamError | None = None

    def __repr__(self) -> str:
        return f"Attached({self._status!r})"

    @property
    def status(self) -> AttachmentStatus:
        """The newest status."""
        if self._status is None:
            raise RuntimeError("the sandbox is not attached yet")
        return self._status

    @property
    def name(self) -> str:
        """The sandbox's name in `sessions`, the audit and `kill`."""
        return self.status.name

    @property
    def enrolment(self) -> str | None:
        return self.status.enrolment

    @property
    def is_attached(self) -> bool:
        """Whether the pipe is open now."""
        return self._failure is None and self.status.state == "attached"

    @property
    def failure(self) -> CofferdamError | None:
        """Why the attachment has ended before its `with` block; None while it lasts."""
        return self._failure

    def _take(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._status = _calls.status(line)
            if self._status.state == "over":
                self._fail(AttachmentError(f"the attachment is over: {self._status.why}", self._status.cause or "ended"))

    def _is_first_attached(self, data: bytes) -> bool:
        """Whether the sandbox is attached now, for the first time; raises an error if waiting longer would not help."""
        self._take(data)
        return self._status is not None and _calls.is_attached(self._status)

    def _fail(self, error: CofferdamError) -> None:
        self._failure = self._failure or error

    def _last_state(self) -> str:
        """The last state, for the message of a deadline."""
        if self._status is None:
            return ""
        return f"; it was {self._status.state}" + (f": {self._status.why}" if self._status.why else "")
