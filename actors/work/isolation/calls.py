"""The calls into the kernel that keep work in, which Python lacks: no_new_privs, capabilities, Landlock, seccomp.

All of them only ever take away, and what they take from a process its children do not get back. Each raises OSError
where the kernel refuses. Numbers are those of Linux on x86-64 and arm64; elsewhere there is no seccomp filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from functools import cache
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.prctl.restype = ctypes.c_int

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 4, 22, 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION, _RULE_PATH_BENEATH = 1, 1
_FILE_RIGHTS_BY_ABI: Final = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many of the rights on files each ABI of Landlock knows; from 5 on, all 16."""
_ON_FILES = 0xC007
"""Of the rights, those that a rule about a file may give: execute, write, read, truncate, ioctl on a device."""
_SCOPES_ABI = 6
_SCOPES = 3
"""No abstract sockets of others, and no signals to them."""

READ_EXECUTE: Final = 1 | 4 | 8
READ_ONLY: Final = 4 | 8
EVERYTHING: Final = 0xFFFF


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer


def _prctl(option: int, value: int, what: str, third: int = 0) -> int:
    return _checked(int(_libc.prctl(option, value, third, 0, 0)), what)


def gain_no_privileges() -> None:
    """From here on no program that is executed gains anything by being setuid or having capabilities of its own."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")


def be_dumpable() -> None:
    """Have our own files of /proc again, which a change of uid has given to root."""
    _prctl(_PR_SET_DUMPABLE, 1, "dumpable")


def get_ready() -> None:
    """Work out what does not differ between children, in the process that they are forked from: a millisecond of CPU
    in each of them, most of it for the memory that they would share with it else."""
    machine = os.uname().machine
    for unix_sockets in (True, False):
        filter_program(machine, unix_sockets=unix_sockets)
    last_capability()


@cache
def last_capability() -> int:
    """The number of the last capability that this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        return int(file.read())


def drop_bounding_set() -> None:
    """Take all capabilities out of the bounding set: nothing that is executed has any of them again."""
    for number in range(last_capability() + 1):
        _prctl(_PR_CAPBSET_DROP, number, "capabilities")


def bounding_set_is_empty() -> bool:
    """Whether nothing is left in it."""
    return not any(_prctl(_PR_CAPBSET_READ, number, "capabilities") for number in range(last_capability() + 1))


# -- Landlock: https://docs.kernel.org/userspace-api/landlock.html


def landlock_abi() -> int:
    """Which version of Landlock this kernel has on; 0: none."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)))


def allow_files(rules: Iterable[tuple[str, int]], abi: int | None = None) -> int:
    """From here on only what lies below these paths may be used, with the access named; gives the ABI, 0: none.

    A path that is not there is left out. It allows, and cannot forbid: what is to stay shut must lie below none of
    them. Needs :func:`gain_no_privileges` first. Nothing is mounted any more, nor is anything signalled or reached by
    an abstract socket beyond what is restricted as we are (from ABI 6 on). *abi*: act as on an older kernel.
    """
    version = landlock_abi() if abi is None else abi
    if version < 1:
        return 0
    rights = (1 << _FILE_RIGHTS_BY_ABI.get(version, 16)) - 1
    scopes = _SCOPES if version >= _SCOPES_ABI else 0
    ruleset = struct.pack("=QQQ", rights, 0, scopes)
    size = 8 if version < 4 else 16 if version < _SCOPES_ABI else 24
    held = _checked(int(_libc.syscall(_LANDLOCK_CREATE_RULESET, ruleset, ctypes.c_size_t(size), 0)), "landlock")
    try:
        for path, access in rules:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            try:
                possible = rights if os.path.isdir(path) else rights & _ON_FILES
                rule = struct.pack("=Qi", access & possible, opened)
                _checked(int(_libc.syscall(_LANDLOCK_ADD_RULE, held, _RULE_PATH_BENEATH, rule, 0)), "landlock")
            finally:
                os.close(opened)
        _checked(int(_libc.syscall(_LANDLOCK_RESTRICT_SELF, held, 0)), "landlock")
    finally:
        os.close(held)
    return version


# -- seccomp: https://docs.kernel.org/userspace-api/seccomp_filter.html

_REFUSED: Final = {
    # name: number on x86-64, on arm64. What work has no need of, and what has given root to many.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "setns": (308, 268),
    "perf_event_open": (298, 241),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
}
_CLONE, _CLONE3 = (56, 220), 435
_SOCKET, _AF_UNIX = (41, 198), 1
_NAMESPACES = 0x7E02_0000
"""The flags of clone(2) that make namespaces: mount, cgroup, uts, ipc, user, pid, net."""
_MACHINES: Final = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_X32 = 0x4000_0000
_LD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16
_SECCOMP_MODE_FILTER = 2


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


@cache
def filter_program(machine: str, *, unix_sockets: bool = True) -> bytes:
    """The instructions of the filter for that machine; empty where its numbers are not known.

    *unix_sockets*: whether sockets of files may be made; pairs may always.

    What is refused is EPERM, so that a program goes on without it. clone3 is ENOSYS: its flags cannot be looked at, and
    the C library takes clone then. Programs for another architecture of the machine (32 bit) may do nothing.
    """
    if machine not in _MACHINES:
        return b""
    column, architecture = _MACHINES[machine]
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    parts = [
        _instruction(_LD_WORD, _AT_ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture, 1, 0),
        refuse,
        _instruction(_LD_WORD, _AT_NUMBER),
    ]
    if machine == "x86_64":
        parts += [_instruction(_JUMP_AT_LEAST, _X32, 0, 1), refuse]
    parts += [_instruction(_JUMP_EQUAL, _CLONE3, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    for numbers in _REFUSED.values():
        parts += [_instruction(_JUMP_EQUAL, numbers[column], 0, 1), refuse]
    if not unix_sockets:
        parts += [
            _instruction(_JUMP_EQUAL, _SOCKET[column], 0, 4),
            _instruction(_LD_WORD, _AT_FIRST_ARGUMENT),
            _instruction(_JUMP_EQUAL, _AF_UNIX, 0, 1),
            refuse,
            _instruction(_RETURN, _ALLOW),
        ]
    parts += [
        _instruction(_JUMP_EQUAL, _CLONE[column], 0, 3),
        _instruction(_LD_WORD, _AT_FIRST_ARGUMENT),
        _instruction(_JUMP_IF_SET, _NAMESPACES, 0, 1),
        refuse,
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(parts)


def refuse_calls(*, unix_sockets: bool = True) -> None:
    """Refuse the calls that work has no need of, for this process and all it starts. Raises OSError.

    Needs :func:`gain_no_privileges` first. *unix_sockets*: see ``filter_program``.
    """
    machine = os.uname().machine
    program = filter_program(machine, unix_sockets=unix_sockets)
    if not program:
        raise OSError(errno.ENOSYS, f"seccomp: no filter for {machine}")
    filled = _Program(len(program) // 8, program)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, "seccomp", ctypes.addressof(filled))


def name_to_handle_at_fails_with() -> int:
    """The error of a call that the filter refuses, made with nothing: EFAULT without it."""
    number = _REFUSED["name_to_handle_at"][_MACHINES.get(os.uname().machine, (0, 0))[0]]
    _libc.syscall(number, -1, None, None, None, 0)
    return ctypes.get_errno()
