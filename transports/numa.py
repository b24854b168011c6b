"""Memory near the processors that read it, on machines with several NUMA nodes.

The kernel puts a page where it is touched first: a ring where its writer runs, a buffer where it was filled. Who reads
waits for each line that is far, who writes does not; so a reader that may run on one node alone has its memory there.
A process that may run on several nodes is near to none, and nothing is done for it; nor where there is one node, or
where the kernel does not allow it. Nothing ever fails for it: pages are preferred there, and go elsewhere when it is
full.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SYSFS = Path("/sys/devices/system/node")
NODES_MAX = 1024
_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_PREFERRED = 1
_WORD_BITS = 64
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class NumaNodes:
    """The processors of each node that has some."""

    processors: dict[int, frozenset[int]]

    @classmethod
    def read(cls, sysfs: Path = SYSFS) -> NumaNodes:
        """The nodes of a machine, as its *sysfs* has them; none where it says nothing of them."""
        found = {}
        for folder in sysfs.glob("node[0-9]*"):
            number = folder.name.removeprefix("node")
            try:
                processors = numbers_in((folder / "cpulist").read_text())
            except (OSError, ValueError):
                continue
            if number.isdecimal() and int(number) < NODES_MAX and processors:
                found[int(number)] = processors
        return cls(found)

    def near(self, processors: frozenset[int]) -> int | None:
        """The one node of all these processors; ``None`` where they are of several, or there is one node in all."""
        if len(self.processors) < 2 or not processors:
            return None
        return next((node for node, theirs in self.processors.items() if processors <= theirs), None)


def numbers_in(text: str) -> frozenset[int]:
    """The numbers of a list like ``0-3,8``. Raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


@cache
def nodes_here() -> NumaNodes:
    """This machine's nodes, read once."""
    return NumaNodes.read()


def own_node(nodes: NumaNodes | None = None) -> int | None:
    """The node that this process may run on, where that is one of several."""
    return (nodes or nodes_here()).near(frozenset(os.sched_getaffinity(0)))


def place_for_reader(memory: mmap.mmap, offset: int = 0, size: int | None = None, node: int | None = None) -> str:
    """Have pages of *memory* that were not touched yet be on the node of this process, which reads them, or on *node*.

    Gives why not; empty where it was done. Of shared memory it holds for all who map it.
    """
    wanted = own_node() if node is None else node
    if wanted is None:
        return "this process is near to no one node"
    number = _MBIND.get(platform.machine())
    if number is None:
        return f"how to ask is not known on {platform.machine()}"
    begin = offset - offset % mmap.PAGESIZE
    end = len(memory) if size is None else min(len(memory), offset + size)
    mask = (ctypes.c_ulong * (NODES_MAX // _WORD_BITS))()
    mask[wanted // _WORD_BITS] = 1 << wanted % _WORD_BITS
    pinned = (ctypes.c_char * len(memory)).from_buffer(memory)
    address = ctypes.addressof(pinned) + begin
    failed = _LIBC.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(end - begin),
        ctypes.c_int(_MPOL_PREFERRED),
        mask,
        ctypes.c_ulong(NODES_MAX + 1),  # the kernel looks at one bit less
        ctypes.c_uint(0),
    )
    why = os.strerror(ctypes.get_errno()) if failed else ""
    del pinned  # the memory cannot be closed before
    return f"the kernel does not take node {wanted}: {why}" if why else ""
