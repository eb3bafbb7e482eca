"""One action on a sandbox of E2B, with the real SDK. Prints its result as JSON."""

import json
import sys

from e2b import CommandExitException, Sandbox


def run(sandbox, command):
    try:
        result = sandbox.commands.run(command)
    except CommandExitException as exited:
        result = exited
    return {"code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}


def main(action, sandbox_id=None, *arguments):
    if action == "create":
        return {"id": Sandbox.create().sandbox_id}
    if action == "pause":
        # Not by an object: to connect to the sandbox would resume it.
        return {"done": Sandbox.pause(sandbox_id)}
    if action == "kill":
        return {"done": Sandbox.kill(sandbox_id)}
    sandbox = Sandbox.connect(sandbox_id)
    if action == "processes":
        lines = [" ".join([process.cmd, *process.args]) for process in sandbox.commands.list()]
        return {"processes": lines}
    if action == "resume":
        return {"done": True}
    return run(sandbox, *arguments)


print(json.dumps(main(*sys.argv[1:])))
