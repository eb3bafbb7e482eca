"""The data of the admin API.

Written by hand and compared with the OpenAPI document by a test. A field's name has `_` where the API's has `-`. Fields
that this version does not know are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PlatformKind = Literal["daytona", "e2b"]
PipeRoute = Literal["dial-out", "preview", "ssh"]
Harness = Literal["claude", "codex", "gemini", "opencode"]
Lifetime = Literal["configured", "detached", "followed"]
AttachState = Literal["attached", "connecting", "detached"]
Confine = Literal["off", "on"]
AttachmentState = Literal[
    "finding", "resuming", "uploading", "starting-hub", "connecting", "attached", "waiting", "suspended", "refused", "over"
]
OverCause = Literal["configuration", "ended", "taken", "no-sandbox", "not-saved", "unauthorized", "unavailable"]
EnrolmentKind = Literal["attached", "key", "socket", "ticket"]
Processes = Literal["all-ended", "still-dying"]
ChangeKind = Literal[
    "enrolment-created",
    "enrolment-ended",
    "link-ended",
    "link-opened",
    "session-began",
    "session-ended",
    "attached",
    "detached",
]


@dataclass(frozen=True, kw_only=True)
class AttachmentStatus:
    """One attachment and its state."""

    name: str
    platform: str
    kind: PlatformKind
    sandbox: str
    grant: str
    lifetime: Lifetime
    enrolment: str | None = None
    #: A warning although the attachment works: entries that could not be added to the harness's settings.
    warning: str | None = None
    state: AttachmentState
    #: While uploading: bytes of the shim that were sent, and all.
    sent: int | None = None
    total: int | None = None
    #: While attached: the key that the hub in the sandbox has proven.
    key: str | None = None
    #: Why the attachment is waiting, refused or over.
    why: str | None = None
    retry_in_ms: int | None = None
    cause: OverCause | None = None


@dataclass(frozen=True, kw_only=True)
class AttachedSandbox:
    """A sandbox to which the host opens pipes, and which has no link now."""

    enrolment: str
    name: str
    grant: str
    state: AttachState
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Enrolled:
    """A new enrolment. Its `text` is a secret until the sandbox has used it."""

    enrolment: str
    expires_in_seconds: int
    text: str

    def __repr__(self) -> str:
        return f"Enrolled(enrolment={self.enrolment!r}, expires_in_seconds={self.expires_in_seconds}, text=[secret])"


@dataclass(frozen=True, kw_only=True)
class EnrolmentEntry:
    """One enrolment in a list."""

    enrolment: str
    name: str | None = None
    grant: str
    kind: EnrolmentKind
    expires_in_seconds: int
    session: str | None = None
    links: int


@dataclass(frozen=True, kw_only=True)
class Credential:
    """A session's view of one secret."""

    secret: str
    origin: str
    renewals: int
    earlier_values: int = 0
    expires_in_seconds: int | None = None
    kept: bool = False
    last_error: str | None = None
    lease: str | None = None
    next_in_seconds: int | None = None
    unrevocable: bool = False


@dataclass(frozen=True, kw_only=True)
class ScopeProcess:
    """A process that runs tools of a scope."""

    tools: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class Wall:
    """A wall around a confined server: what it is around, and what it is made of."""

    name: str
    made_of: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Description:
    """A link with its session."""

    session: str
    link: str
    grant: str
    server: str
    connected: bool
    in_flight: int
    calls: int
    refused: int
    redactions: int
    began: str
    expires_in_seconds: int
    secrets: tuple[str, ...]
    memory_bytes: int = 0
    credentials: tuple[Credential, ...] = ()
    enrolment: str | None = None
    name: str | None = None
    pid: int | None = None
    confine: Confine | None = None
    replacement: str | None = None
    scopes: tuple[ScopeProcess, ...] = ()
    walls: tuple[Wall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Links with their sessions, and attached sandboxes."""

    sessions: tuple[Description, ...]
    attached: tuple[AttachedSandbox, ...] = ()
    attachments: tuple[AttachmentStatus, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotRevocable:
    """A credential that outlives its session because it cannot be revoked."""

    secret: str
    origin: str
    expires: str | None = None
    values: int = 1


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A revocation that is not done yet."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class RevokedAfter:
    """A revocation that is done."""

    after_ms: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A revocation, done or pending."""

    pending: Pending | None = None
    revoked: RevokedAfter | None = None


@dataclass(frozen=True, kw_only=True)
class LeaseEnd:
    """The end of one lease."""

    secret: str
    lease: str
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Revoked:
    """The revocation of a session's credentials in Vault."""

    token: Outcome
    leases: tuple[LeaseEnd, ...]


@dataclass(frozen=True, kw_only=True)
class EndedLink:
    """One link that was ended."""

    session: str
    link: str
    calls_unanswered: int
    processes: Processes
    server_ended_ms: int
    not_revocable: tuple[NotRevocable, ...] = ()
    vault: Revoked | None = None


@dataclass(frozen=True, kw_only=True)
class EndedAttachment:
    """An attachment that has ended. An attachment of the configuration is started again at the next reload or restart."""

    name: str
    lifetime: Lifetime


@dataclass(frozen=True, kw_only=True)
class Killed:
    """The links, enrolment and attachment that have ended."""

    links: tuple[EndedLink, ...]
    total_ms: int
    enrolment: str | None = None
    attachment: EndedAttachment | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """One event of `watch`."""

    event: ChangeKind
    time: str
    grant: str
    enrolment: str | None = None
    link: str | None = None
    name: str | None = None
    reason: str | None = None
    session: str | None = None


@dataclass(frozen=True)
class Lagged:
    """The client of `watch` read too slowly and changes were lost: list the sessions again."""
