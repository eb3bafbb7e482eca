"""Compares the classes of `cofferdam_sdk.types` with the OpenAPI document, field by field."""

import dataclasses
import json
import os
import types
import typing
import unittest
from pathlib import Path

import cofferdam_sdk.types as sdk
from cofferdam_sdk import _calls
from cofferdam_sdk._decode import hints, json_name

DEFAULT = Path(__file__).resolve().parents[3] / "sidecar/openapi.json"
DOCUMENT = json.loads(Path(os.environ.get("COFFERDAM_OPENAPI", DEFAULT)).read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]
# Classes whose schemas have no name in the document, because they are inline.
INLINE = {"Pending": ("Outcome", "pending"), "RevokedAfter": ("Outcome", "revoked")}
RESPONSES = {
    sdk.Enrolled: ("/v1/enrolments", "post"),
    sdk.Killed: ("/v1/kill", "post"),
    sdk.Sessions: ("/v1/sessions", "get"),
    _calls.Attachments: ("/v1/attachments", "get"),
    _calls.Enrolments: ("/v1/enrolments", "get"),
}


def schema_of(kind):
    if kind in RESPONSES:
        path, method = RESPONSES[kind]
        return DOCUMENT["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    if kind.__name__ in INLINE:
        name, field = INLINE[kind.__name__]
        return merged(SCHEMAS[name])["properties"][field]
    return SCHEMAS[kind.__name__]


def merged(schema):
    """Merges the variants of an object into one object: a field that not all variants have is not required."""
    if "oneOf" not in schema:
        return schema
    properties, required = dict(schema.get("properties", {})), set(schema.get("required", ()))
    required |= set.intersection(*(set(one["required"]) for one in schema["oneOf"]))
    for one in schema["oneOf"]:
        for name, value in one["properties"].items():
            if "const" in value and name in properties:
                value = {"enum": [*enum_values(properties[name]), value["const"]]}
            properties[name] = value
    return {"properties": properties, "required": sorted(required)}


def enum_values(schema):
    if "oneOf" in schema:
        return [word for one in schema["oneOf"] for word in enum_values(one)]
    return schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []


def simplified(schema):
    """Simplifies a schema for comparison."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return sorted(enum_values(SCHEMAS[name])) if enum_values(SCHEMAS[name]) else name
    if "anyOf" in schema:
        (inner,) = (one for one in schema["anyOf"] if one.get("type") != "null")
        return {"optional": simplified(inner)}
    if enum_values(schema):
        return sorted(enum_values(schema))
    kind = schema["type"]
    if isinstance(kind, list):
        (kind,) = set(kind) - {"null"}
        return {"optional": kind}
    if kind == "array":
        return {"list": simplified(schema["items"])}
    return kind


def simplified_hint(hint):
    """Simplifies a type hint for comparison."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return sorted(arguments)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (one for one in arguments if one is not types.NoneType)
        return {"optional": simplified_hint(inner)}
    if origin is tuple:
        return {"list": simplified_hint(arguments[0])}
    return {str: "string", int: "integer", bool: "boolean"}.get(hint) or hint.__name__


class Types(unittest.TestCase):
    def test_every_class_has_the_fields_of_the_document(self):
        classes = [one for one in vars(sdk).values() if dataclasses.is_dataclass(one) and one is not sdk.Lagged]
        self.assertGreater(len(classes), 15)
        for kind in [*classes, _calls.Attachments, _calls.Enrolments]:
            with self.subTest(kind.__name__):
                self.compare(kind, merged(schema_of(kind)))

    def compare(self, kind, schema):
        fields = {json_name(kind, field.name): field for field in dataclasses.fields(kind)}
        self.assertEqual(sorted(fields), sorted(schema["properties"]))
        required = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
        self.assertEqual(sorted(required), sorted(schema.get("required", ())))
        for name, field in fields.items():
            hint, wanted = simplified_hint(hints(kind)[field.name]), simplified(schema["properties"][name])
            # A field that only some variants have may be absent.
            if name not in required and field.default is None and not isinstance(wanted, dict):
                wanted = {"optional": wanted}
            if isinstance(hint, dict) and hint.get("optional") in ("Pending", "RevokedAfter"):
                continue
            self.assertEqual(hint, wanted, name)

    def test_every_request_has_fields_of_the_document(self):
        options = _calls.AttachOptions(
            kind="e2b",
            sandbox="i",
            grant="g",
            name="n",
            platform="p",
            ttl=1,
            resume=True,
            keep_awake=True,
            via="ssh",
            harness="claude",
        )
        sent = options.call().body["attachment"]
        # A file of the host is not for orchestrators.
        self.assertEqual(sorted(sent), sorted(set(SCHEMAS["AttachmentRequest"]["properties"]) - {"shim"}))
        for call in [
            options.call(),
            _calls.enroll("g", "n", 1, 1, "/s"),
            _calls.kill("s"),
            _calls.watch(),
            _calls.sessions(),
            _calls.attachments(),
            _calls.enrolments(),
        ]:
            operation = DOCUMENT["paths"][call.path][call.method.lower()]
            if call.body is not None and call.upgrade is None:
                body = operation["requestBody"]["content"]["application/json"]["schema"]
                self.assertEqual(sorted(call.body), sorted(body["properties"]), call.path)
        for call, path in [
            (_calls.end_enrolment("a b/ü"), "/v1/enrolments/{enrolment}"),
            (_calls.end_attachment("a b/ü"), "/v1/attachments/{name}"),
        ]:
            self.assertIn(call.method.lower(), DOCUMENT["paths"][path])
            self.assertTrue(call.path.endswith("/a%20b%2F%C3%BC"), call.path)


if __name__ == "__main__":
    unittest.main()
