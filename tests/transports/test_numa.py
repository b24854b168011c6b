"""Memory near its reader: on nodes that a folder says there are, and by the word of the kernel that is here."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.transports import numa
from actorgrid.transports.numa import NODES_MAX, NumaNodes, nodes_here, numbers_in, own_node, place_for_reader
from actorgrid.transports.shared_memory.path import SharedMemoryPath
from actorgrid.transports.shared_memory.segment import HEADER_BYTES, PathSegment, offer, take, unavailable

HERE = frozenset(os.sched_getaffinity(0))
ELSEWHERE = frozenset({max(HERE) + 1, max(HERE) + 2})
GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
MPOL_PREFERRED, MPOL_F_ADDR = 1, 2


def node_asked_for(memory: mmap.mmap, offset: int = 0) -> int | None:
    """The node that a page of *memory* is preferred on, by the kernel's word; ``None`` where none was asked for."""
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * (NODES_MAX // 64))()
    pinned = (ctypes.c_char * len(memory)).from_buffer(memory)
    failed = ctypes.CDLL(None).syscall(
        ctypes.c_long(GET_MEMPOLICY[platform.machine()]),
        ctypes.byref(mode),
        mask,
        ctypes.c_ulong(NODES_MAX),
        ctypes.c_void_p(ctypes.addressof(pinned) + offset),
        ctypes.c_ulong(MPOL_F_ADDR),
    )
    del pinned
    assert not failed
    if mode.value != MPOL_PREFERRED:
        return None
    return next((at * 64 + word.bit_length() - 1 for at, word in enumerate(mask) if word), None)


def refused_by_kernel() -> str:
    """Why pages cannot be asked for here, tried on one of ours; empty where they can."""
    if platform.machine() not in GET_MEMPOLICY:
        return f"not known on {platform.machine()}"
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        return place_for_reader(page, node=min(nodes_here().processors, default=0))


def sysfs(folder: Path, **lists: str) -> Path:
    """What the kernel says of nodes, made up."""
    (folder / "has_cpu").write_text("0-1\n")
    for name, processors in lists.items():
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(processors + "\n")
    return folder


def test_nodes_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    found = NumaNodes.read(sysfs(tmp_path, node0="0-3,8", node1="4-7", node2="", node99999="9", nodeX="9"))
    assert found.processors == {0: frozenset({0, 1, 2, 3, 8}), 1: frozenset({4, 5, 6, 7})}, "node2 has memory alone"
    assert found.near(frozenset({1, 8})) == 0
    assert found.near(frozenset({5})) == 1
    assert found.near(frozenset({3, 4})) is None, "of two nodes"
    assert found.near(frozenset()) is None
    assert NumaNodes.read(tmp_path / "none").processors == {}
    (tmp_path / "node1" / "cpulist").write_text("what?")
    assert NumaNodes.read(tmp_path).processors.keys() == {0}


def test_one_node_is_nothing_to_be_near_to(tmp_path: Path) -> None:
    assert NumaNodes.read(sysfs(tmp_path, node0="0-63")).near(frozenset({1})) is None


def test_numbers_of_a_list() -> None:
    assert numbers_in("0-2,5\n") == {0, 1, 2, 5}
    assert numbers_in("\n") == set()
    with pytest.raises(ValueError, match="invalid literal"):
        numbers_in("0-x")


def test_a_process_that_may_run_anywhere_is_near_to_none() -> None:
    assert own_node(NumaNodes({0: frozenset({min(HERE)}), 1: ELSEWHERE})) == (0 if len(HERE) == 1 else None)
    assert own_node(NumaNodes({0: HERE, 1: ELSEWHERE})) == 0


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process runs on node 0, which is here, and there is another one."""
    if why := refused_by_kernel():
        pytest.skip(f"no memory policy: {why}")
    nodes = NumaNodes({0: HERE, 1: ELSEWHERE})
    monkeypatch.setattr(numa, "nodes_here", lambda: nodes)
    yield


@pytest.mark.usefixtures("two_nodes")
def test_pages_are_asked_for_near_the_reader() -> None:
    with mmap.mmap(-1, 8 * mmap.PAGESIZE) as memory:
        assert node_asked_for(memory) is None
        assert place_for_reader(memory, 2 * mmap.PAGESIZE + 100, mmap.PAGESIZE) == ""
        asked = [node_asked_for(memory, at * mmap.PAGESIZE) for at in range(8)]
        assert asked == [None, None, 0, 0, None, None, None, None]
        assert place_for_reader(memory) == ""
        assert node_asked_for(memory, 7 * mmap.PAGESIZE) == 0


def test_a_node_that_is_not_there_is_refused_in_words() -> None:
    if why := refused_by_kernel():
        pytest.skip(f"no memory policy: {why}")
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        why = place_for_reader(memory, node=numa.NODES_MAX - 1)
        assert why and node_asked_for(memory) is None


def test_where_there_is_one_node_nothing_is_asked_for() -> None:
    if own_node() is not None:
        pytest.skip("this process runs on one of several nodes")
    if why := refused_by_kernel():
        pytest.skip(f"no memory policy: {why}")
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        assert place_for_reader(memory) == "this process is near to no one node"
        assert node_asked_for(memory) is None


@pytest.mark.usefixtures("two_nodes")
def test_each_ring_is_near_the_side_that_reads_it() -> None:
    if why := unavailable():
        pytest.skip(why)
    here, there = socket.socketpair()
    taken: list[PathSegment] = []
    taking = threading.Thread(target=lambda: taken.append(take(there)))
    taking.start()
    segment = offer(here)
    taking.join(30)
    path = SharedMemoryPath(segment, here)
    try:
        # It offered, so that it reads the second ring; the first is for the other side to ask for.
        second = HEADER_BYTES + segment.ring_bytes
        assert node_asked_for(segment.memory, second + mmap.PAGESIZE) == 0
        assert node_asked_for(segment.memory, mmap.PAGESIZE) is None
        # The policy is of the memory, whoever maps it.
        assert node_asked_for(taken[0].memory, second + mmap.PAGESIZE) == 0
    finally:
        path.close()
        taken[0].close()
        there.close()
