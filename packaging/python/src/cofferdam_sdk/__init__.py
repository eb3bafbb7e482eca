"""Cofferdam's SDK: attach sandboxes and control a sidecar from an orchestrator. Only the standard library is needed.

Types with similar names, most of them named as in the admin API's OpenAPI document:

- `Attachment` is what `attach` returns, for a `with` statement; `Attached` is the attached sandbox inside of it.
- `AttachmentStatus` is the state of one attachment to a platform's sandbox, as `attachments` and `sessions` list it.
- `AttachedSandbox` is an entry of `Sessions.attached`: a sandbox that is attached without a platform and has no link now.
- `Description` is an entry of `Sessions.sessions`: one link with its session, server and credentials.
"""

from ._async import AsyncWatch
from ._blocking import Watch
from ._follow import Attached
from .client import AsyncClient, Attachment, Client, attach
from .errors import (
    ApiError,
    AttachmentError,
    CofferdamError,
    DeadlineError,
    NotFoundError,
    ProtocolError,
    SettingsError,
    UnauthorizedError,
    UnreachableError,
)
from .types import (
    AttachedSandbox,
    AttachmentStatus,
    Change,
    Credential,
    Description,
    EndedAttachment,
    EndedLink,
    Enrolled,
    EnrolmentEntry,
    Killed,
    Lagged,
    Sessions,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncWatch",
    "Attached",
    "AttachedSandbox",
    "Attachment",
    "AttachmentError",
    "AttachmentStatus",
    "Change",
    "Client",
    "CofferdamError",
    "Credential",
    "DeadlineError",
    "Description",
    "EndedAttachment",
    "EndedLink",
    "Enrolled",
    "EnrolmentEntry",
    "Killed",
    "Lagged",
    "NotFoundError",
    "ProtocolError",
    "Sessions",
    "SettingsError",
    "UnauthorizedError",
    "UnreachableError",
    "Watch",
    "attach",
]
