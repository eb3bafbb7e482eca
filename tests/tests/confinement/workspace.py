"""A small MCP server that says which of two directories it sees, and whether it can write to the first."""

import json
import os
import sys


def listed(variable):
    try:
        return sorted(os.listdir(os.environ[variable]))
    except OSError:
        return None


def look():
    found = {"one": listed("ONE"), "two": listed("TWO"), "written": False}
    try:
        with open(os.path.join(os.environ["ONE"], "new"), "w") as file:
            file.write("written")
        found["written"] = True
    except OSError:
        pass
    return {"content": [{"type": "text", "text": json.dumps(found)}]}


def answer(method):
    if method == "initialize":
        info = {"name": "workspace", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
    return look() if method == "tools/call" else {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": answer(message["method"])}
        print(json.dumps(reply), flush=True)
