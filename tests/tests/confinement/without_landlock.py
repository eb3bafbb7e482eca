"""Executes a program on a kernel that seems to have no Landlock: its first system call fails as if it did not exist."""

import ctypes
import os
import struct
import sys

LANDLOCK_CREATE_RULESET = 444
ENOSYS = 38
SECCOMP = 277 if os.uname().machine == "aarch64" else 317
SET_MODE_FILTER = 1
PR_SET_NO_NEW_PRIVS = 38

instructions = [
    (0x20, 0, 0, 0),  # load the number
    (0x15, 0, 1, LANDLOCK_CREATE_RULESET),
    (0x06, 0, 0, 0x00050000 | ENOSYS),
    (0x06, 0, 0, 0x7FFF0000),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
if os.geteuid() != 0:
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
if libc.syscall(SECCOMP, SET_MODE_FILTER, 0, program) != 0:
    sys.exit(f"cannot install the filter: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
