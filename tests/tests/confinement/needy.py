"""An MCP server that asks for what its tool is told to: it reads, writes, runs and connects, and answers with what happened."""

import json
import os
import socket
import subprocess
import sys


def do(name, target):
    if name == "read":
        return open(target).read()
    if name == "write":
        with open(target, "a") as file:
            return str(file.write("x"))
    if name == "run":
        return str(subprocess.run([target], check=False).returncode)
    if name == "relative":
        os.chdir(os.path.dirname(target))
        return open(os.path.basename(target)).read()
    if name == "in_directory":
        directory = os.open(os.path.dirname(target), os.O_RDONLY)
        return str(os.stat(os.path.basename(target), dir_fd=directory).st_size)
    host, port = target.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        return connection.recv(64).decode()


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "needy", "version": "1"}}
    if method == "tools/list":
        return {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]}
    if method == "ping":
        return {}
    arguments = params["arguments"]
    try:
        return {"content": [{"type": "text", "text": do(arguments["what"], arguments["target"])}]}
    except OSError as error:
        return {"isError": True, "content": [{"type": "text", "text": f"{type(error).__name__}: {error}"}]}


if "MUST_READ" in os.environ:
    open(os.environ["MUST_READ"]).close()
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params"))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
