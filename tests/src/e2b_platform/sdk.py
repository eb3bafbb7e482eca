"""Actions on sandboxes of E2B, with the real SDK. Each line of stdin is a JSON array with an action and its arguments; its result
is a line of JSON on stdout."""

import json
import sys

from e2b import CommandExitException, Sandbox


def run(sandbox, command, user=None):
    try:
        result = sandbox.commands.run(command, user=user)
    except CommandExitException as exited:
        result = exited
    return {"code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}


def act(action, sandbox_id=None, *arguments):
    if action == "create":
        return {"id": Sandbox.create().sandbox_id}
    # Not by an object: to connect to the sandbox would resume it.
    if action == "pause":
        return {"done": Sandbox.pause(sandbox_id)}
    if action == "state":
        return {"state": Sandbox.get_info(sandbox_id).state.value}
    if action == "kill":
        return {"done": Sandbox.kill(sandbox_id)}
    sandbox = Sandbox.connect(sandbox_id)
    if action == "processes":
        lines = [" ".join([process.cmd, *process.args]) for process in sandbox.commands.list()]
        return {"processes": lines}
    if action == "resume":
        return {"done": True}
    if action == "start":
        return {"pid": sandbox.commands.run(*arguments, background=True, timeout=0).pid}
    return run(sandbox, *arguments)


for line in sys.stdin:
    try:
        result = act(*json.loads(line))
    except Exception as error:  # Whatever it is, the test that waits for the line shows it.
        result = {"error": repr(error)}
    print(json.dumps(result), flush=True)
