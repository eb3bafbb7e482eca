"""The requests of the admin API that this package makes, and the types of their responses. Does no I/O."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from . import _decode, _wire
from ._endpoint import Endpoint
from .errors import ApiError, AttachmentError, NotFoundError, ProtocolError, SettingsError, UnauthorizedError
from .types import AttachmentStatus, Change, Enrolled, EnrolmentEntry, Harness, Killed, Lagged, PipeRoute, PlatformKind, Sessions

T = TypeVar("T")

#: How many seconds one request may take.
REQUEST_TIMEOUT = 30.0
#: How many seconds attaching a sandbox may take, the upload of the shim included.
ATTACH_TIMEOUT = 120.0
#: How many seconds a stream of events may be silent: the sidecar sends something at least every 15.
WATCH_TIMEOUT = 45.0
#: The protocol that an attachment's connection is upgraded to.
FOLLOW = "cofferdam-attachment"


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str
    path: str
    response: type[T]
    body: dict[str, Any] | None = None
    upgrade: str | None = None

    def encoded(self, endpoint: Endpoint) -> bytes:
        headers = dict(endpoint.headers)
        if self.upgrade:
            headers |= {"Connection": "upgrade", "Upgrade": self.upgrade}
        body = None
        if self.body is not None:
            body = json.dumps({name: value for name, value in self.body.items() if value is not None}).encode()
        return _wire.request(self.method, self.path, endpoint.host, headers, body)

    def result(self, status: int, body: bytes) -> T:
        if status != 200:
            raise refusal(status, body)
        return _decode.from_bytes(self.response, body)


@dataclass(frozen=True, kw_only=True)
class Enrolments:
    enrolments: tuple[EnrolmentEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Attachments:
    attachments: tuple[AttachmentStatus, ...]


@dataclass(frozen=True, kw_only=True)
class AttachOptions:
    """Which sandbox is to be attached, and how."""

    kind: PlatformKind
    sandbox: str
    grant: str
    name: str | None = None
    platform: str | None = None
    ttl: float | None = None
    resume: bool = False
    keep_awake: bool = False
    via: PipeRoute | None = None
    harness: Harness | None = None

    def call(self) -> Call[AttachmentStatus]:
        attachment = {
            "kind": self.kind,
            "platform": self.platform,
            "sandbox": self.sandbox,
            "grant": self.grant,
            "name": self.name,
            "ttl-ms": milliseconds(self.ttl),
            "resume": self.resume,
            "keep-awake": self.keep_awake,
            "via": self.via,
            "harness": self.harness,
        }
        attachment = {name: value for name, value in attachment.items() if value is not None}
        return Call("POST", "/v1/attachments", AttachmentStatus, {"attachment": attachment}, FOLLOW)


def enroll(grant: str, name: str | None, ttl: float | None, ticket_ttl: float | None, socket: str | None) -> Call[Enrolled]:
    body = {
        "grant": grant,
        "name": name,
        "ttl-ms": milliseconds(ttl),
        "ticket-ttl-ms": milliseconds(ticket_ttl),
        "socket": socket,
    }
    return Call("POST", "/v1/enrolments", Enrolled, body)


def enrolments() -> Call[Enrolments]:
    return Call("GET", "/v1/enrolments", Enrolments)


def end_enrolment(enrolment: str) -> Call[Killed]:
    return Call("DELETE", f"/v1/enrolments/{segment(enrolment)}", Killed)


def sessions() -> Call[Sessions]:
    return Call("GET", "/v1/sessions", Sessions)


def kill(session: str) -> Call[Killed]:
    return Call("POST", "/v1/kill", Killed, {"session": session})


def attachments() -> Call[Attachments]:
    return Call("GET", "/v1/attachments", Attachments)


def end_attachment(name: str) -> Call[Killed]:
    return Call("DELETE", f"/v1/attachments/{segment(name)}", Killed)


def watch() -> Call[Change]:
    return Call("GET", "/v1/events", Change)


def change(name: str, data: bytes) -> Change | Lagged:
    return Lagged() if name == "lagged" else _decode.from_bytes(Change, data)


def status(line: bytes) -> AttachmentStatus:
    return _decode.from_bytes(AttachmentStatus, line)


def is_attached(found: AttachmentStatus) -> bool:
    """Raises an error if waiting longer would not help."""
    match found.state:
        case "attached":
            return True
        case "over":
            raise AttachmentError(f"cannot attach the sandbox {found.sandbox}: {found.why}", found.cause or "ended")
        case "refused":
            raise AttachmentError(f"cannot attach the sandbox {found.sandbox}: {found.why}", "refused")
        case "suspended":
            why = f"{found.why or 'it is suspended'}; start it, or attach with resume=True"
            raise AttachmentError(f"cannot attach the sandbox {found.sandbox}: {why}", "suspended")
        case _:
            return False


def refusal(status: int, body: bytes) -> ApiError:
    try:
        error = json.loads(body)["error"]
        code, message, hint = str(error["code"]), str(error["message"]), error.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ProtocolError(
            f"cannot read the sidecar's response: status {status} without an error body; is this Cofferdam's admin API?"
        ) from None
    kind = {401: UnauthorizedError, 403: UnauthorizedError, 404: NotFoundError}.get(status, ApiError)
    return kind(status, code, message, hint if isinstance(hint, str) else None)


def segment(text: str) -> str:
    if not text:
        raise SettingsError("a name must not be empty")
    return quote(text, safe="")


def milliseconds(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not (math.isfinite(seconds) and seconds > 0):
        raise SettingsError("a time to live must be a number of seconds above 0")
    return math.ceil(seconds * 1000)
