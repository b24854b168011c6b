"""Device nodes that work was not granted, refused by the kernel: a program of BPF at its cgroup (v2), by bpf(2).

Opening and making such a node is EPERM for whatever lives in the group, root too. It needs root, and no controller of
the group. https://docs.kernel.org/admin-guide/cgroup-v2.html#device-controller
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Collection
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_PROG_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
_CHARACTER_DEVICE = 2
_LOAD_WORD, _AND, _JUMP_UNLESS_EQUAL, _SET, _EXIT = 0x61, 0x57, 0x55, 0xB7, 0x95
NODES_MAX = 512
"""Nodes that one filter refuses; a host has some dozens."""

Node = tuple[int, int]
"""Of a character device: major and minor number."""


def attach_filter(group: Path, denied: Collection[Node]) -> None:
    """Refuse the nodes *denied* to all in the cgroup *group*, and in those below. Raises OSError."""
    if len(denied) > NODES_MAX:
        raise OSError(errno.E2BIG, f"{len(denied)} device nodes")
    code = _program(denied)
    instructions, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    load = struct.pack(
        "=IIQQ", _PROG_TYPE_CGROUP_DEVICE, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence)
    )
    program = _bpf(_PROG_LOAD, load)
    try:
        folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_PROG_ATTACH, struct.pack("=IIII", folder, program, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
        finally:
            os.close(folder)
    finally:
        os.close(program)  # the group keeps it


def _instruction(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | target, offset, value)


def _program(denied: Collection[Node]) -> bytes:
    """0 for the nodes *denied*, else 1. r1 is {u32 access and type, u32 major, u32 minor}."""
    tests = [
        _instruction(part[0], *part[1:])
        for major, minor in denied
        for part in (
            (_JUMP_UNLESS_EQUAL, 3, 0, 3, major),
            (_JUMP_UNLESS_EQUAL, 4, 0, 2, minor),
            (_SET, 0, 0, 0, 0),
            (_EXIT,),
        )
    ]
    head = [
        _instruction(_LOAD_WORD, 2, 1, 0),
        _instruction(_AND, 2, 0, 0, 0xFFFF),
        _instruction(_JUMP_UNLESS_EQUAL, 2, 0, 2 + len(tests), _CHARACTER_DEVICE),
        _instruction(_LOAD_WORD, 3, 1, 4),
        _instruction(_LOAD_WORD, 4, 1, 8),
    ]
    return b"".join([*head, *tests, _instruction(_SET, 0, 0, 0, 1), _instruction(_EXIT)])


def _bpf(command: int, fields: bytes) -> int:
    number = _BPF.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf: no number for {platform.machine()}")
    attributes = ctypes.create_string_buffer(fields.ljust(128, b"\0"), 128)
    answer = int(_libc.syscall(number, command, attributes, 128))
    if answer < 0:
        raise OSError(ctypes.get_errno(), f"bpf: {os.strerror(ctypes.get_errno())}")
    return answer
