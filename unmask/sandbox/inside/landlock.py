"""Restrict a process with Landlock (Linux 5.13): read libraries, write in one folder, send no signals out."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every architecture
RULE_PATH_BENEATH = 1
WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, REFER = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 13
FILE_RIGHTS = WRITE_FILE | READ_FILE | TRUNCATE
KNOWN_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # ABI -> number of rights on files; 16 from ABI 5 on
TCP = 0b11  # bind and connect, from ABI 4 on
SCOPED = 0b11  # abstract sockets and signals, from ABI 6 on
LIBRARIES = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/zero")


def restrict(libc: ctypes.CDLL, folder: str) -> list[str]:
    """Allow writes in the folder only, reads in it and the libraries; return the layer if it is active."""
    abi = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return []
    handled = (1 << KNOWN_RIGHTS.get(abi, 16)) - 1
    wanted = [handled, *([TCP] if abi >= 4 else []), *([SCOPED] if abi >= 6 else [])]
    packed = struct.pack(f"={len(wanted)}Q", *wanted)
    ruleset = libc.syscall(CREATE_RULESET, packed, ctypes.c_size_t(len(packed)), 0)
    if ruleset < 0:
        return []
    reads = READ_FILE | READ_DIR
    own = WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER
    for path in {sys.base_prefix, sys.base_exec_prefix, *LIBRARIES}:
        _allow(libc, ruleset, path, reads & handled)
    _allow(libc, ruleset, os.devnull, (reads | WRITE_FILE) & handled)
    _allow(libc, ruleset, folder, (reads | own) & handled)
    held = libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return [f"Landlock {abi}"] if held else []


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not on this machine
        return
    allowed = rights if os.path.isdir(path) else rights & FILE_RIGHTS
    libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, struct.pack("=Qi", allowed, parent), 0)
    os.close(parent)
