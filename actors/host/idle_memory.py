"""Keep an idle host's memory small: pages that its processes share stay shared, pages that only the start needed go.

A forked process shares every page with the one before it until one of the two writes into it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping

MADV_DONTNEED = 4
SMALL_BYTES_MAX = 512
"""Up to this size CPython puts objects into pools of its own, each for one size (Objects/obmalloc.c)."""
FILLERS_MAX = 100_000
"""A host has some 6,000 gaps. At this many the allocator is another one than we think, and nothing is filled."""

_POOL_BYTES, _POOL_HEAD_BYTES, _ALIGNMENT_BYTES = 16 * 1024, 48, 16
_UNUSED_POOL_RUN = 16
_ALLOCATED_BYTES_MAX = 64 * 1024
_fillers: list[object] = []
_LOGGED_OR_COPIED = (str, int, float, bytes, tuple, list, set, dict, type(None))


class _MallInfo2(ctypes.Structure):
    """mallinfo2(3), of which only the last field is used: the unused bytes at the end of the heap."""

    _fields_ = [(name, ctypes.c_size_t) for name in (*(f"other_{number}" for number in range(9)), "keepcost")]


def ready_to_fork() -> None:
    """See that the processes forked from here on write into few of the pages that they share with this one.

    Call it last, when everything is loaded: what is looked up, made or dropped afterwards undoes part of it.
    """
    know_what_is_no_mapping()
    gc.collect()
    fill_gaps()
    fill_allocator_gaps()
    forget_lookups()
    gc.freeze()


def know_what_is_no_mapping() -> None:
    """Ask once for the kinds of objects that all processes ask for, so that the answers are on shared pages.

    ``isinstance(x, Mapping)``, of which each log record and each copied table makes one, goes through all hundred
    subclasses of Mapping when it first sees a kind of *x*, and writes the answer down in each.
    """
    for kind in _LOGGED_OR_COPIED:
        issubclass(kind, Mapping)


def forget_lookups() -> None:
    """Empty the interpreter's cache of what names mean in classes.

    It holds 4,096 names. A process that looks up another one writes into the string that is driven out, too; after
    the imports those are strings all over the heap, and each costs it the page around it. Emptied, it drives out none.
    """
    forget = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache  # the latter until 3.12
    forget()


def fill_gaps() -> int:
    """Fill the gaps between small objects, for good, before processes are forked; gives how many bytes it took.

    What a forked process makes is put into gaps first, one here and one there, and each costs it a whole page that it
    had shared. Without gaps its objects lie side by side on pages of their own. The gaps took memory already, so this
    costs none. Again: fills what came about since.
    """
    found: list[object] = []
    for size in range(_ALIGNMENT_BYTES, SMALL_BYTES_MAX + 1, _ALIGNMENT_BYTES):
        found += _gaps_of_size(size, FILLERS_MAX - len(found))
        if len(found) >= FILLERS_MAX:
            return 0
    _fillers.append(found)
    return sum(sys.getsizeof(filler) for filler in found)


def _gaps_of_size(size: int, count_max: int) -> list[object]:
    """Objects of *size* bytes in all gaps of that size.

    Partly used pools are used up before an unused one is begun, and that one shows: its blocks are given out in order
    from its first.
    """
    make = _maker(size)
    found: list[object] = []
    run, before = 0, 0
    while len(found) < count_max:
        filler = make()
        address = id(filler)
        run = run + 1 if run and address == before + size else int(address % _POOL_BYTES == _POOL_HEAD_BYTES)
        before = address
        found.append(filler)
        if run == _UNUSED_POOL_RUN:
            del found[-run:]  # the pool is unused again
            break
    return found


def _maker(size: int) -> Callable[[], object]:
    if size == 16:
        return object
    if size == 32:
        return lambda: complex(1.0, 1.0)  # the one type of this size without a list of free ones
    length = size - sys.getsizeof(b"")
    return lambda: bytes(length)


def fill_allocator_gaps() -> int:
    """``fill_gaps`` for what is larger than 512 bytes, in the C library's heap; gives how many bytes it took.

    Gaps are asked for from the largest size on, and what comes from the unused end of the heap is given back: then
    there is no gap of that size any more. Without glibc 2.33 nothing is filled.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype, libc.sbrk.restype, libc.malloc.restype = _MallInfo2, ctypes.c_void_p, ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_void_p], [ctypes.c_long]
    unused_from = (libc.sbrk(0) or 0) - libc.mallinfo2().keepcost - _ALIGNMENT_BYTES
    taken = count = 0
    for size in range(_ALLOCATED_BYTES_MAX, SMALL_BYTES_MAX, -_ALIGNMENT_BYTES):
        while count < FILLERS_MAX:
            address = libc.malloc(size) or 0
            if not address or address >= unused_from:
                libc.free(address)
                break
            taken, count = taken + size, count + 1
    return taken


def give_back_file_pages() -> int:
    """Drop this process's pages of mapped files (libraries, mostly touched by imports alone); gives how many bytes.

    Only read-only mappings without a single page of our own (the linker writes into some before it protects them):
    their pages are read again from the page cache when they are next touched (madvise(2)). The front process of an
    agent sleeps nearly all its life, so this frees about 7 MB for good.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    dropped = 0
    for start, end in _untouched_files():
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED) == 0:
            dropped += end - start
    return dropped


def _untouched_files() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    region: tuple[int, int] | None = None
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first, *rest = line.split(maxsplit=5)
            if not first.endswith(":"):
                start, end = (int(address, 16) for address in first.split("-"))
                read_only_file = len(rest) == 5 and rest[4].startswith("/") and "w" not in rest[0]
                region = (start, end) if read_only_file else None
            elif first == "Anonymous:" and region is not None and rest[0] == "0":
                found.append(region)
    return found
