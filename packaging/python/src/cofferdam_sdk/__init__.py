"""Cofferdam's SDK: attach sandboxes and control a sidecar from an orchestrator. Only the standard library is needed."""

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
