"""The sidecar's address, and the token for it.

What must stay true: a token is sent only over TLS with a verified certificate, or to a Unix socket; a token of the environment
is sent only to the address of the environment; a token is never printed.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .errors import SettingsError


@dataclass(frozen=True)
class Remote:
    host: str
    port: int
    context: ssl.SSLContext


class Endpoint:
    """The admin socket, or an address with TLS."""

    def __init__(self, place: Path | Remote, token: str | None) -> None:
        self.place = place
        self._token = token

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r})"

    @property
    def name(self) -> str:
        """The address, for messages."""
        if isinstance(self.place, Remote):
            return f"https://{self.host}"
        return str(self.place)

    @property
    def host(self) -> str:
        if not isinstance(self.place, Remote):
            return "localhost"
        host = self.place.host
        return f"[{host}]:{self.place.port}" if ":" in host else f"{host}:{self.place.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    @classmethod
    def find(
        cls,
        *,
        socket: str | os.PathLike[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Endpoint:
        """Uses the arguments first, then the environment, then the sidecar's default socket."""
        if socket is not None and url is not None:
            raise SettingsError("`socket` and `url` exclude each other: give only one of them")
        found = os.environ if environment is None else environment
        if socket is None and url is None and found.get("COFFERDAM_URL"):
            url = found["COFFERDAM_URL"]
            token = token if token is not None else found.get("COFFERDAM_TOKEN") or None
            ca_file = ca_file if ca_file is not None else found.get("COFFERDAM_CA_FILE") or None
        token = None if token is None else _checked(token)
        if url is not None:
            return cls(_remote(url, ca_file), token)
        if ca_file is not None:
            raise SettingsError("`ca_file` is for a `url`: a socket has no certificate")
        if socket is None:
            socket = found.get("COFFERDAM_ADMIN_SOCKET") or _default_socket(found)
        return cls(Path(socket), token)


def _checked(token: str) -> str:
    token = token.strip()
    if not token or not all("!" <= character <= "~" for character in token):
        raise SettingsError("the token is empty or has characters that no token has; `cofferdam token create` prints one")
    return token


def _remote(url: str, ca_file: str | os.PathLike[str] | None) -> Remote:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise SettingsError("the sidecar's address is not a URL; write https://HOST:PORT") from None
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme != "https" or not host or port == 0 or has_more or not host.isascii():
        # The message does not repeat the address, which may contain a token.
        raise SettingsError("the sidecar's address must have the form https://HOST:PORT")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"cannot read the authority's certificate from {os.fspath(ca_file or '')}: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return Remote(host, port or 443, context)


def _default_socket(environment: Mapping[str, str]) -> str:
    """The same path as the default of the sidecar's `admin.socket`."""
    if os.getuid() == 0:
        return "/run/cofferdam/admin/admin.sock"
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return f"{runtime}/cofferdam/admin/admin.sock"
    state = environment.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        state = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".local/state")
    return f"{state}/cofferdam/admin/admin.sock"
