"""The client for programs with asyncio: one connection per request, every wait with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TypeVar

from . import _calls, _wire
from ._blocking import keep_alive
from ._calls import Call
from ._endpoint import Endpoint, Remote
from ._follow import Attached
from .errors import ApiError, CofferdamError, DeadlineError, NotFoundError, ProtocolError, UnreachableError
from .types import Change, Lagged

T = TypeVar("T")


class Connection:
    """One connection with one request. Its methods have no deadline: the caller sets it."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self.response = _wire.Response()

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Connection:
        place = endpoint.place
        try:
            if isinstance(place, Remote):
                reader, writer = await asyncio.open_connection(place.host, place.port, ssl=place.context)
                keep_alive(writer.get_extra_info("socket"))
            else:
                reader, writer = await asyncio.open_unix_connection(str(place))
        except TimeoutError:
            raise
        except OSError as error:
            raise UnreachableError(f"cannot connect to the sidecar at {endpoint.name}: {error}; does `cofferdam serve` run there?") from error
        return cls(endpoint, reader, writer)

    async def exchange(self, call: Call[T]) -> int:
        """Sends the request and reads up to the head of the response; returns its status."""
        try:
            self._writer.write(call.encoded(self._endpoint))
            await self._writer.drain()
        except OSError as error:
            raise self._lost(error) from error
        while not self.response.status:
            await self.feed()
        return self.response.status

    async def feed(self) -> None:
        try:
            data = await self._reader.read(65536)
        except OSError as error:
            raise self._lost(error) from error
        if not data and not self.response.status:
            raise UnreachableError(f"the sidecar at {self._endpoint.name} closed the connection without a response")
        self.response.feed(data)

    async def body(self) -> bytes:
        while not self.response.is_complete:
            await self.feed()
        return self.response.take()

    def close(self) -> None:
        self._writer.close()

    def _lost(self, error: OSError) -> UnreachableError:
        return UnreachableError(f"the connection to the sidecar at {self._endpoint.name} was lost: {error}")


def deadline_error(endpoint: Endpoint, timeout: float) -> DeadlineError:
    return DeadlineError(f"the sidecar at {endpoint.name} did not respond within {timeout:g} s")


async def perform(endpoint: Endpoint, call: Call[T], timeout: float) -> T:
    try:
        async with asyncio.timeout(timeout):
            connection = await Connection.open(endpoint)
            try:
                status = await connection.exchange(call)
                return call.result(status, await connection.body())
            finally:
                connection.close()
    except TimeoutError:
        raise deadline_error(endpoint, timeout) from None


class AsyncWatch:
    """A stream of changes: `async with client.watch() as changes: async for change in changes: ...`."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._connection: Connection | None = None
        self._events = _wire.Events()
        self._waiting: list[tuple[str, bytes]] = []

    async def __aenter__(self) -> AsyncWatch:
        try:
            async with asyncio.timeout(self._timeout):
                self._connection = connection = await Connection.open(self._endpoint)
                status = await connection.exchange(_calls.watch())
                if status != 200:
                    raise _calls.refusal(status, await connection.body())
                self._waiting += self._events.feed(connection.response.take())
                while not self._waiting:
                    await self._read(connection)
        except BaseException as error:
            await self.__aexit__(None, None, None)
            if isinstance(error, TimeoutError):
                raise deadline_error(self._endpoint, self._timeout) from None
            raise
        # The first event is `ready`: the stream has begun.
        del self._waiting[0]
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._connection is not None:
            self._connection.close()

    async def __aiter__(self) -> AsyncIterator[Change | Lagged]:
        connection = self._connection
        if connection is None:
            raise RuntimeError("watch: enter it first: `async with client.watch() as changes`")
        while True:
            while self._waiting:
                yield _calls.change(*self._waiting.pop(0))
            if connection.response.is_complete:
                return
            try:
                async with asyncio.timeout(_calls.WATCH_TIMEOUT):
                    await self._read(connection)
            except TimeoutError:
                raise deadline_error(self._endpoint, _calls.WATCH_TIMEOUT) from None

    async def _read(self, connection: Connection) -> None:
        if connection.response.is_complete:
            raise UnreachableError("the sidecar ended the stream of changes before its first event")
        await connection.feed()
        self._waiting += self._events.feed(connection.response.take())


class AsyncFollower:
    """Keeps a sandbox attached. A task reads the status of its attachment."""

    def __init__(self, endpoint: Endpoint, connection: Connection, attached: Attached) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self.attached = attached
        self._task = asyncio.create_task(self._read(), name="cofferdam-attachment")

    @classmethod
    async def start(cls, endpoint: Endpoint, options: _calls.AttachOptions, timeout: float) -> AsyncFollower:
        attached = Attached()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout):
                connection = await Connection.open(endpoint)
                await cls._begin(connection, attached, options)
            return cls(endpoint, connection, attached)
        except BaseException as error:
            # The sidecar ends the attachment when the connection ends. A cancellation is handled here too.
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise DeadlineError(f"the sandbox was not attached within {timeout:g} s{attached._last_state()}") from None
            raise

    @staticmethod
    async def _begin(connection: Connection, attached: Attached, options: _calls.AttachOptions) -> None:
        status = await connection.exchange(options.call())
        if status == 200:
            raise ProtocolError("the sidecar did not upgrade the connection; are its version and the SDK's the same?")
        if status != 101:
            raise _calls.refusal(status, await connection.body())
        while not attached._is_first_attached(connection.response.take()):
            if connection.response.is_complete:
                raise UnreachableError("the sidecar ended the connection before the sandbox was attached; did it stop?")
            await connection.feed()

    async def _read(self) -> None:
        try:
            while not self._connection.response.is_complete:
                await self._connection.feed()
                self.attached._take(self._connection.response.take())
            self.attached._fail(UnreachableError("the sidecar ended the connection of the attachment; did it stop?"))
        except CofferdamError as error:
            self.attached._fail(error)

    async def end(self) -> None:
        """Returns when the session, its processes and the attachment have ended."""
        enrolment = self.attached.enrolment
        try:
            if self.attached.failure is None and enrolment is not None:
                await perform(self._endpoint, _calls.end_enrolment(enrolment), _calls.REQUEST_TIMEOUT)
        except (NotFoundError, UnreachableError):
            pass  # The attachment has ended, or ends with the connection.
        finally:
            # Not awaited: a second cancellation must not keep the connection open.
            self._task.cancel()
            self._connection.close()

    async def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.end()
        except (ApiError, DeadlineError) as failure:
            if error is None:
                raise
            error.add_note(f"cofferdam: the attachment may not have ended: {failure}")
