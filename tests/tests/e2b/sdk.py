"""The real Python SDK of E2B on the double: what it expects of the platform must hold. Prints one line per step."""

import os
import time

from e2b import (
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)


def step(name):
    print("step:", name, flush=True)


def raised(kind, action):
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)


sandbox = Sandbox.create()
assert sandbox.get_info().state.value == "running"
step("create")

sandbox.files.write("notes/a.bin", bytes(range(256)))
assert sandbox.files.read("notes/a.bin", format="bytes") == bytes(range(256))
sandbox.files.write_files([{"path": "/home/user/b", "data": "bee"}, {"path": "/tmp/c", "data": b"sea"}])
assert sandbox.commands.run("cat /home/user/b /tmp/c").stdout == "beesea"
raised(NotFoundException, lambda: sandbox.files.read("absent"))
step("files")

assert sandbox.commands.run("id -u; pwd").stdout == "1000\n/home/user\n"
assert sandbox.commands.run("id -u", user="root").stdout == "0\n"
result = sandbox.commands.run("echo $GREETING; echo bad >&2", envs={"GREETING": "hello"}, cwd="/tmp")
assert (result.stdout, result.stderr, result.exit_code) == ("hello\n", "bad\n", 0)
assert raised(CommandExitException, lambda: sandbox.commands.run("exit 3")).exit_code == 3
step("run")

cat = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
assert cat.pid in [process.pid for process in sandbox.commands.list()]
sandbox.commands.send_stdin(cat.pid, "one\n")
sandbox.commands.stream_input(cat.pid, ["two\n", b"three\n"])
second = sandbox.commands.connect(cat.pid, timeout=0)
sandbox.commands.send_stdin(cat.pid, "four\n")
sandbox.commands.close_stdin(cat.pid)
assert cat.wait().stdout == "one\ntwo\nthree\nfour\n"
assert "four\n" in second.wait().stdout
step("input")

script = 'while read line; do echo "got $line"; echo "$line" >> /tmp/read; done'
detached = sandbox.commands.run(script, background=True, stdin=True, timeout=0)
detached.disconnect()
sandbox.commands.send_stdin(detached.pid, "lost\n")
until(lambda: "lost" in sandbox.commands.run("cat /tmp/read 2>/dev/null; true").stdout)
attached = sandbox.commands.connect(detached.pid, timeout=0)
sandbox.commands.send_stdin(detached.pid, "kept\n")
sandbox.commands.close_stdin(detached.pid)
assert attached.wait().stdout == "got kept\n"
step("output is lost while detached")

sleeper = sandbox.commands.run("exec sleep 600", background=True, timeout=0)
assert sandbox.commands.kill(sleeper.pid) is True
raised(CommandExitException, sleeper.wait)
assert sandbox.commands.kill(sleeper.pid) is False
raised(NotFoundException, lambda: sandbox.commands.connect(999999))
step("kill")

raised(TimeoutException, lambda: sandbox.commands.run("sleep 600", timeout=1))
began = time.monotonic()
raised(TimeoutException, lambda: sandbox.commands.run("exec sleep 601"))
assert time.monotonic() - began < 30, "the SDK's default limit of 60 s is not on the double's clock"
until(lambda: "601" not in str(sandbox.commands.list()))
step("time limit")

sandbox.commands.run("cp /bin/sleep /tmp/busy")
busy = sandbox.commands.run("exec /tmp/busy 600", background=True, timeout=0)
until(lambda: "busy" in sandbox.commands.run(f"cat /proc/{busy.pid}/cmdline; true").stdout.split("\0")[0].split("/"))
raised(SandboxException, lambda: sandbox.files.write("/tmp/busy", b"other"))
step("a running binary is not written over")

token = sandbox.connection_config.sandbox_headers["X-Access-Token"]
sandbox.pause()
assert sandbox.get_info().state.value == "paused"
raised(Exception, lambda: sandbox.commands.list(request_timeout=5))
resumed = Sandbox.connect(sandbox.sandbox_id)
assert resumed.get_info().state.value == "running"
assert resumed.connection_config.sandbox_headers["X-Access-Token"] != token
assert busy.pid in [process.pid for process in resumed.commands.list()]
raised(AuthenticationException, lambda: sandbox.commands.list())
step("pause and resume")

(fork,) = resumed.fork()
assert fork.sandbox_id != resumed.sandbox_id
assert fork.files.read("b") == "bee"
assert fork.files.read("/run/e2b/.E2B_SANDBOX_ID") == fork.sandbox_id
step("fork")

raised(AuthenticationException, lambda: Sandbox.connect(resumed.sandbox_id, api_key="e2b_" + "0" * 40))
raised(NotFoundException, lambda: Sandbox.connect("iunknown"))
raised(NotFoundException, lambda: Sandbox.connect(resumed.sandbox_id, api_key=os.environ["OTHER_API_KEY"]))
raised(SandboxException, lambda: Sandbox.connect("Not_An_Id"))
assert resumed.kill() is True
raised(NotFoundException, lambda: Sandbox.connect(resumed.sandbox_id))
step("keys and ids")
# Streams that the SDK still reads would keep the interpreter.
os._exit(0)
