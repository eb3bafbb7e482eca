"""The two clients, and `attach`."""

from __future__ import annotations

import os
from types import TracebackType

from . import _async, _blocking, _calls
from ._async import AsyncWatch
from ._blocking import Watch
from ._endpoint import Endpoint
from ._follow import Attached
from ._sandboxes import recognise
from .types import AttachmentStatus, Enrolled, EnrolmentEntry, Harness, Killed, PipeRoute, PlatformKind, Sessions


class Attachment:
    """Attaches a sandbox for the duration of a `with` or an `async with` block. Can be entered only once."""

    def __init__(self, endpoint: Endpoint, options: _calls.AttachOptions, timeout: float) -> None:
        self._endpoint = endpoint
        self._options = options
        self._timeout = timeout
        self._follower: _blocking.Follower | _async.AsyncFollower | None = None

    def __enter__(self) -> Attached:
        self._enter_once()
        self._follower = _blocking.Follower(self._endpoint, self._options, self._timeout)
        return self._follower.attached

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(self._follower, _blocking.Follower):
            self._follower.leave(kind, error, trace)

    async def __aenter__(self) -> Attached:
        self._enter_once()
        self._follower = await _async.AsyncFollower.start(self._endpoint, self._options, self._timeout)
        return self._follower.attached

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._follower, _async.AsyncFollower):
            await self._follower.leave(kind, error, trace)

    def _enter_once(self) -> None:
        if self._follower is not None:
            raise RuntimeError("attach: this attachment was used already; call `attach` again")


class _Base:
    """The base of both clients. Without arguments, the sidecar is found by the environment, then at its default socket."""

    def __init__(
        self,
        *,
        socket: str | os.PathLike[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        timeout: float = _calls.REQUEST_TIMEOUT,
    ) -> None:
        self._endpoint = Endpoint.find(socket=socket, url=url, token=token, ca_file=ca_file)
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint.name!r})"

    def attach(
        self,
        sandbox: object,
        *,
        grant: str,
        platform: PlatformKind | None = None,
        platform_name: str | None = None,
        name: str | None = None,
        ttl: float | None = None,
        resume: bool = False,
        keep_awake: bool = False,
        via: PipeRoute | None = None,
        harness: Harness | None = None,
        timeout: float = _calls.ATTACH_TIMEOUT,
    ) -> Attachment:
        """Attaches a sandbox object of the `e2b` or `daytona` SDK, or an id with its `platform`, while a block runs.

        `platform_name` is the `NAME` of `[platforms.NAME]`, where the sidecar has several of one kind. The servers of the
        grant are added to the settings of `harness` in the sandbox; what could not be added is in the status's `warning`.
        `resume` resumes a sandbox that is paused or stopped now; without it, the sandbox is attached once it runs again.
        `via` is how the sandbox is connected to the sidecar: with "preview" (the default) or "ssh" through the platform, with
        "dial-out" by a connection from the sandbox to the sidecar's `relay.advertise`.
        `timeout` is for the time until the sandbox is attached.
        """
        kind, identifier = recognise(sandbox, platform)
        options = _calls.AttachOptions(
            kind=kind,
            sandbox=identifier,
            grant=grant,
            name=name,
            platform=platform_name,
            ttl=ttl,
            resume=resume,
            keep_awake=keep_awake,
            via=via,
            harness=harness,
        )
        return Attachment(self._endpoint, options, timeout)


# The methods of the two clients differ in `async` only. Python's types cannot say "`T` in one class and an awaitable `T` in the
# other", so both are written out, as thin as they can be; a test compares their signatures.


class Client(_Base):
    """The admin API, for programs without asyncio."""

    def enroll(
        self,
        grant: str,
        *,
        name: str | None = None,
        ttl: float | None = None,
        ticket_ttl: float | None = None,
        socket: str | None = None,
    ) -> Enrolled:
        """Enrols one sandbox that connects to the sidecar itself; times in seconds. Pass the result's `text` to the sandbox.

        `ttl` is how long the sandbox stays enrolled, `ticket_ttl` how long the `text` can be used for its first connection. With
        `socket`, a directory on the sidecar's host, the sidecar creates a Unix socket in it for this sandbox, and `text` is the
        socket's address.
        """
        return self._perform(_calls.enroll(grant, name, ttl, ticket_ttl, socket))

    def enrolments(self) -> tuple[EnrolmentEntry, ...]:
        return self._perform(_calls.enrolments()).enrolments

    def end_enrolment(self, enrolment: str) -> Killed:
        """Ends the enrolment with this id or sandbox name, and its session."""
        return self._perform(_calls.end_enrolment(enrolment))

    def sessions(self) -> Sessions:
        return self._perform(_calls.sessions())

    def kill(self, session: str) -> Killed:
        """Ends the session with this id, enrolment id or sandbox name, and its enrolment."""
        return self._perform(_calls.kill(session))

    def attachments(self) -> tuple[AttachmentStatus, ...]:
        return self._perform(_calls.attachments()).attachments

    def end_attachment(self, name: str) -> Killed:
        return self._perform(_calls.end_attachment(name))

    def watch(self) -> Watch:
        """A stream of changes: enrolments, sessions and links that begin or end, sandboxes that are attached or detached."""
        return Watch(self._endpoint, self._timeout)

    def _perform(self, call: _calls.Call[_calls.T]) -> _calls.T:
        return _blocking.perform(self._endpoint, call, self._timeout)


class AsyncClient(_Base):
    """The admin API, for programs with asyncio."""

    async def enroll(
        self,
        grant: str,
        *,
        name: str | None = None,
        ttl: float | None = None,
        ticket_ttl: float | None = None,
        socket: str | None = None,
    ) -> Enrolled:
        """Enrols one sandbox that connects to the sidecar itself; times in seconds. Pass the result's `text` to the sandbox.

        `ttl` is how long the sandbox stays enrolled, `ticket_ttl` how long the `text` can be used for its first connection. With
        `socket`, a directory on the sidecar's host, the sidecar creates a Unix socket in it for this sandbox, and `text` is the
        socket's address.
        """
        return await self._perform(_calls.enroll(grant, name, ttl, ticket_ttl, socket))

    async def enrolments(self) -> tuple[EnrolmentEntry, ...]:
        return (await self._perform(_calls.enrolments())).enrolments

    async def end_enrolment(self, enrolment: str) -> Killed:
        """Ends the enrolment with this id or sandbox name, and its session."""
        return await self._perform(_calls.end_enrolment(enrolment))

    async def sessions(self) -> Sessions:
        return await self._perform(_calls.sessions())

    async def kill(self, session: str) -> Killed:
        """Ends the session with this id, enrolment id or sandbox name, and its enrolment."""
        return await self._perform(_calls.kill(session))

    async def attachments(self) -> tuple[AttachmentStatus, ...]:
        return (await self._perform(_calls.attachments())).attachments

    async def end_attachment(self, name: str) -> Killed:
        return await self._perform(_calls.end_attachment(name))

    def watch(self) -> AsyncWatch:
        """A stream of changes: enrolments, sessions and links that begin or end, sandboxes that are attached or detached."""
        return AsyncWatch(self._endpoint, self._timeout)

    async def _perform(self, call: _calls.Call[_calls.T]) -> _calls.T:
        return await _async.perform(self._endpoint, call, self._timeout)


def attach(
    sandbox: object,
    *,
    grant: str,
    platform: PlatformKind | None = None,
    platform_name: str | None = None,
    name: str | None = None,
    ttl: float | None = None,
    resume: bool = False,
    keep_awake: bool = False,
    via: PipeRoute | None = None,
    harness: Harness | None = None,
    timeout: float = _calls.ATTACH_TIMEOUT,
) -> Attachment:
    """`Client().attach` for the sidecar that the environment names: for `with` and for `async with`."""
    return _Base().attach(
        sandbox,
        grant=grant,
        platform=platform,
        platform_name=platform_name,
        name=name,
        ttl=ttl,
        resume=resume,
        keep_awake=keep_awake,
        via=via,
        harness=harness,
        timeout=timeout,
    )
