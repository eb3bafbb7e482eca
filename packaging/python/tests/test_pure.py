"""Unit tests that need no sidecar: decoding responses, settings, and recognising sandboxes."""

import inspect
import json
import tempfile
import unittest
import unittest.mock

from cofferdam_sdk import ApiError, AsyncClient, Client, ProtocolError, SettingsError, UnauthorizedError, _calls, _decode, _wire
from cofferdam_sdk import types as sdk
from cofferdam_sdk._endpoint import Endpoint
from cofferdam_sdk._sandboxes import recognise

TOKEN = "cfd_0123456789abcdef"


def read(text, *, size):
    response = _wire.Response()
    body = b""
    for start in range(0, len(text), size):
        response.feed(text[start : start + size])
        body += response.take()
    if not response.is_complete:
        response.feed(b"")
    return response.status, body


class Responses(unittest.TestCase):
    def test_a_response_is_read_however_its_bytes_are_split(self):
        head = b"HTTP/1.1 200 OK\r\n"
        for text, body in [
            (head + b"content-length: 5\r\n\r\nhello", b"hello"),
            (head + b"Content-Length: 0\r\n\r\n", b""),
            (head + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n", b"hello"),
            (head + b"connection: close\r\n\r\nhello", b"hello"),
        ]:
            for size in range(1, len(text) + 1):
                self.assertEqual(read(text, size=size), (200, body), (text, size))

    def test_incomplete_and_too_large_responses_are_errors(self):
        head = b"HTTP/1.1 200 OK\r\n"
        for text in [
            b"",
            b"220 mail.example ESMTP\r\n\r\n",
            head,
            head + b"content-length: 6\r\n\r\nhello",
            head + b"content-length: x\r\n\r\n",
            head + b"content-length: 1000000000000\r\n\r\n",
            head + b"transfer-encoding: chunked\r\n\r\n5\r\nhel",
            head + b"transfer-encoding: chunked\r\n\r\nno\r\n",
            head + b"transfer-encoding: chunked\r\n\r\n-1\r\n",
            head + b"transfer-encoding: chunked\r\n\r\nffffffff\r\n" + b"x" * (17 << 20),
            head + b"x: " + b"x" * 100_000,
            b"HTTP/1.1 307 Temporary Redirect\r\nlocation: https://elsewhere.example\r\n\r\n",
        ]:
            with self.assertRaises(ProtocolError, msg=text[:80]):
                read(text, size=65536)

    def test_events_are_read_and_too_long_lines_are_errors(self):
        text = b'event: ready\ndata: {}\n\n:\n\nevent: lagged\ndata: {}\n\n'
        for size in range(1, len(text)):
            events = _wire.Events()
            found = [one for start in range(0, len(text), size) for one in events.feed(text[start : start + size])]
            self.assertEqual(found, [("ready", b"{}"), ("lagged", b"{}")])
        with self.assertRaises(ProtocolError):
            _wire.Lines().feed(b"x" * (17 << 20))

    def test_refusals_have_code_message_and_hint(self):
        error = {"code": "taken", "message": "it is attached", "hint": "end it"}
        refused = _calls.refusal(409, json.dumps({"error": error}).encode())
        self.assertIs(type(refused), ApiError)
        self.assertEqual((refused.code, str(refused)), ("taken", "it is attached; end it"))
        self.assertIsInstance(_calls.refusal(401, json.dumps({"error": error}).encode()), UnauthorizedError)
        for body in [b"", b"<html>", b"[]", b'{"error": "no"}', b"[" * 100_000]:
            with self.assertRaises(ProtocolError):
                _calls.refusal(502, body)

    def test_unknown_values_of_a_newer_sidecar_are_accepted_and_wrong_types_are_not(self):
        change = {"event": "new-kind", "time": "t", "grant": "dev", "more": [1]}
        self.assertEqual(_decode.from_bytes(sdk.Change, json.dumps(change).encode()).event, "new-kind")
        for wrong in [{"event": "attached", "time": "t"}, {**change, "grant": 1}, [], 5]:
            with self.assertRaises(ProtocolError):
                _decode.from_bytes(sdk.Change, json.dumps(wrong).encode())


class Settings(unittest.TestCase):
    def test_arguments_take_precedence_over_the_environment(self):
        environment = {"COFFERDAM_URL": "https://one.example:7481", "COFFERDAM_TOKEN": TOKEN, "HOME": "/home/x"}
        found = Endpoint.find(environment=environment)
        self.assertEqual((found.name, found.headers), ("https://one.example:7481", {"Authorization": f"Bearer {TOKEN}"}))
        self.assertEqual(Endpoint.find(token="other", environment=environment).headers, {"Authorization": "Bearer other"})
        # The environment's token is for the environment's address only.
        self.assertEqual(Endpoint.find(url="https://two.example", environment=environment).headers, {})
        self.assertEqual(Endpoint.find(socket="/s", environment=environment).headers, {})
        self.assertEqual(Endpoint.find(environment={"COFFERDAM_ADMIN_SOCKET": "/a.sock"}).name, "/a.sock")
        self.assertEqual(Endpoint.find(url="https://[::1]", environment={}).host, "[::1]:443")

    @unittest.mock.patch("os.getuid", lambda: 1000)
    def test_the_default_socket_is_the_default_of_the_sidecar(self):
        self.assertEqual(Endpoint.find(environment={"XDG_RUNTIME_DIR": "/r"}).name, "/r/cofferdam/admin/admin.sock")
        self.assertEqual(Endpoint.find(environment={"HOME": "/h"}).name, "/h/.local/state/cofferdam/admin/admin.sock")

    def test_bad_settings_are_refused_and_messages_contain_no_token(self):
        with tempfile.NamedTemporaryFile() as empty:
            for settings in [
                {"url": "http://one.example:7481"},
                {"url": f"https://{TOKEN}@one.example"},
                {"url": f"https://one.example/?token={TOKEN}"},
                {"url": "https://one.example/admin"},
                {"url": "https://one.example:port"},
                {"url": "https://one.example", "socket": "/s"},
                {"url": "https://one.example", "token": f"{TOKEN}\r\nX-More: 1"},
                {"url": "https://one.example", "token": " "},
                {"url": "https://one.example", "ca_file": "/missing"},
                {"url": "https://one.example", "ca_file": empty.name},
                {"socket": "/s", "ca_file": "/missing"},
            ]:
                with self.assertRaises(SettingsError, msg=settings) as caught:
                    Endpoint.find(**settings, environment={})
                self.assertNotIn(TOKEN, str(caught.exception))
        self.assertNotIn(TOKEN, repr(Endpoint.find(socket="/s", token=TOKEN)))


class Sandboxes(unittest.TestCase):
    def test_objects_of_the_real_sdks_are_recognised(self):
        import daytona
        import e2b

        class Derived(e2b.Sandbox):
            pass

        for kind in (e2b.Sandbox, e2b.AsyncSandbox, Derived):
            one = object.__new__(kind)
            setattr(one, "_SandboxBase__sandbox_id", "i123")
            self.assertEqual(recognise(one, None), ("e2b", "i123"))
        for kind in (daytona.Sandbox, daytona.AsyncSandbox):
            one = kind.model_construct(id="d-1")
            self.assertEqual(recognise(one, "daytona"), ("daytona", "d-1"))
            with self.assertRaises(SettingsError):
                recognise(one, "e2b")

    def test_ids_need_a_platform_and_other_objects_are_refused(self):
        self.assertEqual(recognise("i123", "e2b"), ("e2b", "i123"))
        for sandbox in ["i123", object(), None, 5]:
            with self.assertRaises(SettingsError):
                recognise(sandbox, None)


class Clients(unittest.TestCase):
    def test_both_have_the_same_methods_with_the_same_arguments_and_documentation(self):
        def described(client):
            methods = inspect.getmembers(client, inspect.isfunction)
            return {
                name: (list(inspect.signature(method).parameters.values()), method.__doc__)
                for name, method in methods
                if not name.startswith("_")
            }

        self.assertEqual(described(Client), described(AsyncClient))


if __name__ == "__main__":
    unittest.main()
