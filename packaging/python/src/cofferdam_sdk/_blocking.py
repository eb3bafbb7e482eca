"""The client for programs without asyncio: one connection per request, every wait with a deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, TypeVar

from . import _calls, _wire
from ._calls import Call
from ._endpoint import Endpoint, Remote
from ._follow import Attached
from .errors import ApiError, CofferdamError, DeadlineError, NotFoundError, ProtocolError, UnreachableError
from .types import Change, Lagged

T = TypeVar("T")


class Connection:
    """One connection with one request. Used by one thread, except for `cut`."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._deadline: float | None = time.monotonic() + timeout
        self._timeout = timeout
        self.response = _wire.Response()
        try:
            self._socket = self._connect()
        except TimeoutError:
            raise self._late() from None
        except OSError as error:
            raise UnreachableError(f"cannot connect to the sidecar at {endpoint.name}: {error}; does `cofferdam serve` run there?") from error

    def _connect(self) -> socket.socket:
        place = self._endpoint.place
        if isinstance(place, Remote):
            plain = socket.create_connection((place.host, place.port), self._left())
            try:
                keep_alive(plain)
                plain.settimeout(self._left())
                return place.context.wrap_socket(plain, server_hostname=place.host)
            except BaseException:
                plain.close()
                raise
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.settimeout(self._left())
            local.connect(str(place))
        except BaseException:
            local.close()
            raise
        return local

    def exchange(self, call: Call[T]) -> int:
        """Sends the request and reads up to the head of the response; returns its status."""
        try:
            self._socket.settimeout(self._left())
            self._socket.sendall(call.encoded(self._endpoint))
        except TimeoutError:
            raise self._late() from None
        except OSError as error:
            raise self._lost(error) from error
        while not self.response.status:
            self.feed()
        return self.response.status

    def feed(self) -> None:
        try:
            self._socket.settimeout(self._left())
            data = self._socket.recv(65536)
        except TimeoutError:
            raise self._late() from None
        except OSError as error:
            raise self._lost(error) from error
        if not data and not self.response.status:
            raise UnreachableError(f"the sidecar at {self._endpoint.name} closed the connection without a response")
        self.response.feed(data)

    def body(self) -> bytes:
        while not self.response.is_complete:
            self.feed()
        return self.response.take()

    def wait(self, timeout: float | None) -> None:
        """Sets how long later reads wait; None: until the connection ends."""
        self._timeout = timeout or 0
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def cut(self) -> None:
        """Interrupts a read in another thread."""
        try:
            # Not `SSLSocket.shutdown`, which changes the object that the other thread uses.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # The connection has ended already.

    def close(self) -> None:
        self._socket.close()

    def _left(self) -> float | None:
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._late()
        return left

    def _late(self) -> DeadlineError:
        return DeadlineError(f"the sidecar at {self._endpoint.name} did not respond within {self._timeout:g} s")

    def _lost(self, error: OSError) -> UnreachableError:
        return UnreachableError(f"the connection to the sidecar at {self._endpoint.name} was lost: {error}")


class SupportsOptions(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def keep_alive(connection: SupportsOptions) -> None:
    """Turns on TCP keepalive, so that a vanished peer is noticed on a silent stream after about a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)


def perform(endpoint: Endpoint, call: Call[T], timeout: float) -> T:
    connection = Connection(endpoint, timeout)
    try:
        status = connection.exchange(call)
        return call.result(status, connection.body())
    finally:
        connection.close()


class Watch:
    """A stream of changes: `with client.watch() as changes: for change in changes: ...`. It ends with the sidecar."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._connection: Connection | None = None
        self._events = _wire.Events()
        self._waiting: list[tuple[str, bytes]] = []

    def __enter__(self) -> Watch:
        self._connection = connection = Connection(self._endpoint, self._timeout)
        try:
            status = connection.exchange(_calls.watch())
            if status != 200:
                raise _calls.refusal(status, connection.body())
            self._waiting += self._events.feed(connection.response.take())
            while not self._waiting:
                self._read(connection)
        except BaseException:
            connection.close()
            raise
        # The first event is `ready`: the stream has begun.
        del self._waiting[0]
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def __iter__(self) -> Iterator[Change | Lagged]:
        connection = self._connection
        if connection is None:
            raise RuntimeError("watch: enter it first: `with client.watch() as changes`")
        while True:
            while self._waiting:
                yield _calls.change(*self._waiting.pop(0))
            if connection.response.is_complete:
                return
            connection.wait(_calls.WATCH_TIMEOUT)
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        if connection.response.is_complete:
            raise UnreachableError("the sidecar ended the stream of changes before its first event")
        connection.feed()
        self._waiting += self._events.feed(connection.response.take())


class Follower:
    """Keeps a sandbox attached. A thread reads the status of its attachment."""

    def __init__(self, endpoint: Endpoint, options: _calls.AttachOptions, timeout: float) -> None:
        self._endpoint = endpoint
        self._connection = Connection(endpoint, timeout)
        self.attached = Attached()
        try:
            status = self._connection.exchange(options.call())
            if status == 200:
                raise ProtocolError("the sidecar did not upgrade the connection; are its version and the SDK's the same?")
            if status != 101:
                raise _calls.refusal(status, self._connection.body())
            while not self.attached._is_first_attached(self._connection.response.take()):
                if self._connection.response.is_complete:
                    raise UnreachableError("the sidecar ended the connection before the sandbox was attached; did it stop?")
                self._connection.feed()
        except DeadlineError as error:
            self._connection.close()
            raise DeadlineError(f"the sandbox was not attached within {timeout:g} s{self.attached._last_state()}") from error
        except BaseException:
            # The sidecar ends the attachment when the connection ends.
            self._connection.close()
            raise
        self._connection.wait(None)
        self._thread = threading.Thread(target=self._read, name="cofferdam-attachment", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while not self._connection.response.is_complete:
                self._connection.feed()
                self.attached._take(self._connection.response.take())
            self.attached._fail(UnreachableError("the sidecar ended the connection of the attachment; did it stop?"))
        except CofferdamError as error:
            self.attached._fail(error)

    def end(self) -> None:
        """Returns when the session, its processes and the attachment have ended."""
        enrolment = self.attached.enrolment
        try:
            if self.attached.failure is None and enrolment is not None:
                perform(self._endpoint, _calls.end_enrolment(enrolment), _calls.REQUEST_TIMEOUT)
        except (NotFoundError, UnreachableError):
            pass  # The attachment has ended, or ends with the connection.
        finally:
            self._connection.cut()
            self._thread.join(_calls.REQUEST_TIMEOUT)
            self._connection.close()

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.end()
        except (ApiError, DeadlineError) as failure:
            if error is None:
                raise
            error.add_note(f"cofferdam: the attachment may not have ended: {failure}")
