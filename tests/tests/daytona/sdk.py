"""The requests of the client, made with the real SDK of Daytona to the double."""

import http.client
import os
import time
import urllib.parse
import warnings

warnings.simplefilter("ignore")

from daytona import Daytona, DaytonaError, SessionExecuteRequest

daytona = Daytona()
sandbox = daytona.get(os.environ["SANDBOX"])
assert sandbox.state == "started", sandbox.state

# Files: an upload creates directories, is not executable, and is downloaded unchanged.
content = bytes(range(256)) * 400
sandbox.fs.upload_file(content, "/home/daytona/.tools/program")
assert sandbox.fs.download_file("/home/daytona/.tools/program") == content
done = sandbox.process.exec("test -x ~/.tools/program; echo $?; echo $HOME; uname -m >&2; exit 3")
assert done.exit_code == 3, done
assert done.result.splitlines()[:2] == ["1", "/home/daytona"], done
sandbox.fs.set_file_permissions("/home/daytona/.tools/program", mode="755")
assert sandbox.process.exec("test -x ~/.tools/program && echo yes").result.strip() == "yes"
try:
    sandbox.fs.upload_file(b"x", "/etc/cannot-be-written")
    raise SystemExit("an upload that cannot be written succeeded")
except DaytonaError as error:
    assert "cannot-be-written" in str(error), error

# Sessions: an asynchronous command runs on, and ends with its session.
PORT = int(os.environ["PORT"])
server = f"exec python3 -m http.server --bind 127.0.0.1 --directory /tmp {PORT}"
sandbox.process.create_session("server")
try:
    sandbox.process.create_session("server")
    raise SystemExit("two sessions have one id")
except DaytonaError as error:
    assert "exists" in str(error), error
started = sandbox.process.execute_session_command("server", SessionExecuteRequest(command=server, run_async=True))
session = sandbox.process.get_session("server")
assert session.commands[-1].command == server and session.commands[-1].exit_code is None, session
assert sandbox.process.get_session_command("server", started.cmd_id).exit_code is None
sandbox.process.create_session("short")
ended = sandbox.process.execute_session_command("short", SessionExecuteRequest(command="echo hello; sh -c 'exit 4'"))
assert ended.exit_code == 4 and "hello" in (ended.output or ""), ended


def preview(token, host):
    """The status of a request through the preview proxy, which finds the sandbox by the host's name; 0 if it was disconnected."""
    proxy = urllib.parse.urlparse(os.environ["PROXY"])
    connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=30)
    try:
        connection.request("GET", "/", headers={"Host": host, "x-daytona-preview-token": token})
        return connection.getresponse().status
    except (ConnectionError, http.client.HTTPException):
        return 0  # The server in the sandbox is starting or exiting.


# Preview links need the token of the sandbox's current run.
link = sandbox.get_preview_link(PORT)
host = urllib.parse.urlparse(link.url).netloc
assert host.startswith(f"{PORT}-{sandbox.id}."), link
deadline = time.monotonic() + 30
while (status := preview(link.token, host)) != 200:
    assert status in (0, 502) and time.monotonic() < deadline, status
    time.sleep(0.05)
assert preview("wrong", host) == 307
sandbox.process.delete_session("server")
deadline = time.monotonic() + 30
while preview(link.token, host) != 502:
    assert time.monotonic() < deadline
    time.sleep(0.05)
try:
    sandbox.process.get_session("server")
    raise SystemExit("a deleted session is there")
except DaytonaError as error:
    assert "not found" in str(error), error

# Stop, start, archive: files stay, sessions and the token do not.
sandbox.stop()
assert sandbox.state == "stopped", sandbox.state
try:
    sandbox.process.exec("true")
    raise SystemExit("a stopped sandbox ran a command")
except DaytonaError:
    pass
sandbox.start()
assert sandbox.process.exec("test -x ~/.tools/program && echo yes").result.strip() == "yes"
assert sandbox.process.list_sessions() == []
assert preview(link.token, host) == 307, "the old token is accepted"
assert sandbox.get_preview_link(PORT).token != link.token
sandbox.stop()
sandbox.archive()
sandbox.refresh_data()
assert sandbox.state == "archived", sandbox.state
sandbox.start()
sandbox.refresh_activity()

# SSH: a token that is the user name at the gateway.
access = sandbox.create_ssh_access(expires_in_minutes=5)
assert access.ssh_command.endswith(f"{access.token}@127.{access.ssh_command.split('@127.')[1]}"), access

# A key of another account.
from daytona import DaytonaConfig

try:
    Daytona(DaytonaConfig(api_key="dtn_wrong", api_url=os.environ["DAYTONA_API_URL"])).get(sandbox.id)
    raise SystemExit("a wrong key was accepted")
except DaytonaError as error:
    assert "nauthorized" in str(error), error
print("all accepted")
