"""HTTP/1.1 without I/O: encodes requests, and decodes responses, events and lines from bytes as they arrive.

What must stay true: every limit is checked before more bytes are stored; a redirect is an error, and so is a response that
cannot be read.
"""

from __future__ import annotations

from typing import Final

from .errors import ProtocolError

MAX_HEAD: Final = 64 * 1024
#: The maximum bytes of a response's body, or of one line of a stream.
MAX_BODY: Final = 16 * 1024 * 1024


def request(method: str, path: str, host: str, headers: dict[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "User-Agent: cofferdam-sdk-python"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + (body or b"")


class Response:
    """Decodes a response from bytes. `status` is 0 until its head is complete."""

    def __init__(self) -> None:
        self.status = 0
        self.is_complete = False
        self._headers: dict[str, str] = {}
        self._raw = bytearray()
        self._body = bytearray()
        # Bytes of the body that are still to come; None if the body lasts until the connection ends.
        self._left: int | None = None
        self._is_chunked = False
        # Bytes of the current chunk that are still to come, the line end after it included.
        self._chunk = 0

    def feed(self, data: bytes) -> None:
        """Empty data means that the connection has ended."""
        self._raw += data
        if not self.status:
            self._read_head()
        if self.status:
            self._read_body()
        if not data and not self.is_complete:
            if not self.status or self._is_chunked or self._left:
                raise ProtocolError("cannot read the sidecar's response: the connection ended before its end")
            self.is_complete = True

    def take(self) -> bytes:
        """Removes and returns the bytes of the body so far."""
        taken = bytes(self._body)
        self._body.clear()
        return taken

    def _read_head(self) -> None:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            if len(self._raw) > MAX_HEAD:
                raise ProtocolError(f"cannot read the sidecar's response: its head has more than {MAX_HEAD} bytes")
            return
        lines = self._raw[:end].decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not (rest[:3].isascii() and rest[:3].isdigit()):
            raise ProtocolError("cannot read the sidecar's response: it is not HTTP; is this Cofferdam's admin API?")
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self._headers[name.strip().lower()] = value.strip()
        status = int(rest[:3])
        if 300 <= status < 400:
            raise ProtocolError(f"the response is a redirect ({status}), which is not followed; check the address")
        self._is_chunked = self._headers.get("transfer-encoding", "").lower() == "chunked"
        length = self._headers.get("content-length")
        if status == 101:
            self._is_chunked = False
        elif not self._is_chunked and length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 16) or int(length) > MAX_BODY:
                raise ProtocolError(f"cannot read the sidecar's response: its length is not a number up to {MAX_BODY}")
            self._left = int(length)
        self.status = status

    def _read_body(self) -> None:
        if self._is_chunked:
            self._read_chunks()
        elif self._left is None:
            self._store(len(self._raw))
        else:
            self._left -= self._store(self._left)
            self.is_complete = self._left == 0

    def _read_chunks(self) -> None:
        while not self.is_complete:
            if self._chunk > 2:
                self._chunk -= self._store(self._chunk - 2)
            if self._chunk > 2 or len(self._raw) < self._chunk:
                return
            del self._raw[: self._chunk]
            self._chunk = 0
            end = self._raw.find(b"\r\n")
            if end < 0:
                if len(self._raw) > 64:
                    raise ProtocolError("cannot read the sidecar's response: a chunk has no length")
                return
            digits = bytes(self._raw[:end]).split(b";")[0].strip()
            del self._raw[: end + 2]
            if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
                raise ProtocolError("cannot read the sidecar's response: a chunk has no length")
            size = int(digits, 16)
            self.is_complete = size == 0
            self._chunk = size + 2

    def _store(self, most: int) -> int:
        piece = self._raw[:most]
        if len(self._body) + len(piece) > MAX_BODY:
            raise ProtocolError(f"cannot read the sidecar's response: it has more than {MAX_BODY} bytes")
        self._body += piece
        del self._raw[:most]
        return len(piece)


class Lines:
    """Splits bytes into lines as they arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        if len(rest) > MAX_BODY:
            raise ProtocolError(f"cannot read the sidecar's stream: a line has more than {MAX_BODY} bytes")
        return [bytes(line) for line in lines]


class Events:
    """Decodes server-sent events from bytes as they arrive: pairs of name and data."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._name = ""
        self._data: bytes = b""

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        events = []
        for line in self._lines.feed(data):
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"event":
                self._name = value.strip().decode("utf-8", "replace")
            elif field == b"data":
                self._data = value.strip()
            elif not line.strip() and self._name:
                events.append((self._name, self._data))
                self._name, self._data = "", b""
        return events
