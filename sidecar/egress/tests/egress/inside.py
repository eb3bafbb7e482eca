"""Plays a confined server: makes the network that a test describes, hands its sockets over, runs the test's programs in it.

Runs in namespaces of its own. The socket at descriptor 0 carries lines of JSON: the network, then one command at a time.
"""

import array
import json
import os
import socket
import subprocess

control = socket.socket(fileno=0)
lines = control.makefile("r")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL)


def make_network(network):
    ip("link", "set", "lo", "up")
    if network["pool"]:
        ip("route", "add", "local", network["pool"], "dev", "lo")
    for address in network["addresses"]:
        ip("address", "add", address, "dev", "lo", *(["nodad"] if ":" in address else []))
    sockets = []
    for address, port in network["listeners"]:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
        sockets.append(listener)
    for address, port in network["resolver"]:
        resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        resolver.bind((address, port))
        sockets.append(resolver)
    return sockets


def replace_file(path, content, directory):
    replacement = os.path.join(directory, os.path.basename(path))
    with open(replacement, "w") as file:
        file.write(content)
    subprocess.run(["mount", "--bind", replacement, path], check=True)


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


network = json.loads(lines.readline())
sockets = make_network(network)
for path, content in network["files"].items():
    replace_file(path, content, network["directory"])
rights = array.array("i", [each.fileno() for each in sockets])
control.sendmsg([b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if sockets else [])
for each in sockets:
    each.close()
for line in lines:
    control.sendall(json.dumps(run(json.loads(line))).encode() + b"\n")
