"""Decodes JSON values into the classes of `types`. Unknown fields and unknown values of an enumeration are accepted."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, Literal, TypeVar, Union

from .errors import ProtocolError

T = TypeVar("T")


def from_bytes(kind: type[T], text: bytes) -> T:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("cannot read the sidecar's response: it is not JSON; is this Cofferdam's admin API?") from None
    return typing.cast(T, decode(kind, value, kind.__name__))


def decode(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is Literal:
        # A newer sidecar may send further values.
        return _checked(str, value, where)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in typing.get_args(kind) if argument is not types.NoneType)
        return None if value is None else decode(inner, value, where)
    if origin is tuple:
        item = typing.get_args(kind)[0]
        return tuple(decode(item, element, where) for element in _checked(list, value, where))
    if dataclasses.is_dataclass(kind):
        return _object(kind, _checked(dict, value, where), where)
    return _checked(kind, value, where)


def _object(kind: Any, fields: dict[str, Any], where: str) -> Any:
    found = {}
    for field in dataclasses.fields(kind):
        key = json_name(kind, field.name)
        if key in fields:
            found[field.name] = decode(hints(kind)[field.name], fields[key], f"{where}.{key}")
    try:
        return kind(**found)
    except TypeError:
        raise ProtocolError(f"cannot read the sidecar's response: `{where}` lacks a field; are its version and the SDK's the same?") from None


def json_name(kind: Any, field: str) -> str:
    """The name of a field in the API's JSON."""
    return field if kind.__name__ == "RevokedAfter" else field.replace("_", "-")


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _checked(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"cannot read the sidecar's response: `{where}` has an unexpected type")
    return value
