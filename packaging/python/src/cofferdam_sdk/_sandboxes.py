"""Recognises the sandbox objects of the platforms' SDKs, without importing them."""

from __future__ import annotations

from typing import cast

from .errors import SettingsError
from .types import PlatformKind

#: Top-level package, platform, the attribute with the sandbox's id. Subclasses (`e2b_code_interpreter`) are recognised too.
_KNOWN: tuple[tuple[str, PlatformKind, str], ...] = (
    ("e2b", "e2b", "sandbox_id"),
    ("daytona", "daytona", "id"),
    ("daytona_sdk", "daytona", "id"),
)


def recognise(sandbox: object, platform: PlatformKind | None) -> tuple[PlatformKind, str]:
    """The platform and the id of a sandbox object, or of an id whose platform is given."""
    if isinstance(sandbox, str):
        if platform is None:
            raise SettingsError('the sandbox is given as an id: name its platform with platform="e2b" or platform="daytona"')
        return platform, sandbox
    packages = {kind.__module__.partition(".")[0] for kind in type(sandbox).__mro__}
    for package, kind, attribute in _KNOWN:
        if package in packages:
            if platform not in (None, kind):
                raise SettingsError(f"the sandbox object is of `{package}`, not of the platform `{platform}`")
            identifier = cast(object, getattr(sandbox, attribute, None))
            if isinstance(identifier, str) and identifier:
                return kind, identifier
            raise SettingsError(f"the sandbox object of `{package}` has no id; was it created?")
    raise SettingsError(
        f"a `{type(sandbox).__name__}` is not a sandbox of `e2b` or `daytona`: give the sandbox's id as a string, and `platform`"
    )
