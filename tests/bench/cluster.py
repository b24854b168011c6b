"""Three hosts on one machine, on disk and by mutual TLS: commits and reads beside the disk's own speed and PySyncObj.

``cluster`` has the ledger's processes alone (``raft_trio.py``).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .figures import Figure, Skipped, latency, registry
from .peers import answer_of, python_with
from .raft_trio import NODES, Trio, host_id

COMMITS = 4_000
READS = 12_000
SINGLES = 300
IN_FLIGHT = 64
BEHIND = 100_000
REJOINS = 3
SYNCS = 200
ENTRY_BYTES = 256


def fdatasync_s(folder: Path) -> list[float]:
    """What the disk takes for one small record made durable, again and again."""
    fd = os.open(folder / "syncs", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    samples = []
    try:
        for number in range(SYNCS):
            started = time.perf_counter()
            os.pwrite(fd, b"x" * ENTRY_BYTES, number * ENTRY_BYTES)
            os.fdatasync(fd)
            samples.append(time.perf_counter() - started)
    finally:
        os.close(fd)
    return samples


@registry.add("cluster")
def cluster(runs: int) -> Iterator[Figure]:
    """Commits and linearizable reads of three hosts, asked of the leader and of a follower."""
    syncs: list[list[float]] = []
    singles: dict[str, list[list[float]]] = {"leader": [], "follower": []}
    over: list[float] = []
    writes: dict[str, list[float]] = {"leader": [], "follower": []}
    reads: dict[str, list[float]] = {"leader": [], "follower": []}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # not on a memory file system
        folder = Path(name)
        with Trio(folder) as trio:
            for _ in range(runs):
                leader = trio.leader()
                follower = next(node for node in NODES if node != leader)
                for role, node in (("leader", leader), ("follower", follower)):
                    writes[role].append(trio.calls(node, COMMITS, IN_FLIGHT)[0])
                    reads[role].append(trio.calls(node, READS, IN_FLIGHT, reads=True)[0])
                    syncs.append(fdatasync_s(folder))
                    singles[role].append(trio.calls(node, SINGLES, 1)[1])
                    if role == "leader":
                        over.append(1e3 * (statistics.median(singles[role][-1]) - statistics.median(syncs[-1])))
    yield latency(f"the disk: {ENTRY_BYTES} bytes and fdatasync", syncs, "ms", 1e3)
    yield Figure(
        f"commits, 3 hosts, {IN_FLIGHT} in flight", "commits/s", writes["leader"], True, must=2_000, stretch=5_000,
        note="proposed on the leader",
    )  # fmt: skip
    yield Figure("the same, proposed on a follower", "commits/s", writes["follower"], True)
    yield latency("commit, 3 hosts, one at a time", singles["leader"], "ms", 1e3, note="proposed on the leader")
    yield Figure("what it takes beyond one fdatasync", "ms", over, False, must=4.0, note="median less median, by run")
    yield latency("commit, one at a time, on a follower", singles["follower"], "ms", 1e3)
    yield Figure(f"linearizable reads, {IN_FLIGHT} in flight", "reads/s", reads["leader"], True, note="on the leader")
    yield Figure("the same, on a follower", "reads/s", reads["follower"], True)
    ratios = [a / b for a, b in zip(reads["leader"], writes["leader"], strict=True)]
    yield Figure("linearizable reads for each write", "times", ratios, True, must=3.0, note="on the leader, by run")


@registry.add("cluster_peers")
def cluster_peers(runs: int) -> Iterator[Figure]:
    """PySyncObj with three processes; ours before each of its runs, so that both meet the same machine and disk."""
    python = python_with("pysyncobj")
    script = Path(__file__).with_name("peer_pysyncobj_cluster.py")
    rates: dict[str, list[float]] = {"ours": [], "memory": [], "journal": []}
    singles: dict[str, list[float]] = {"ours": [], "memory": [], "journal": []}
    version = ""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        with Trio(Path(name)) as trio:
            for number in range(runs):
                leader = trio.leader()
                rates["ours"].append(trio.calls(leader, COMMITS, IN_FLIGHT)[0])
                singles["ours"].append(1e3 * statistics.median(trio.calls(leader, SINGLES, 1)[1]))
                journals = Path(name) / f"journals{number}"
                journals.mkdir()
                found = answer_of("PySyncObj", [python, script, journals, COMMITS])
                version = found["version"]
                for kind in ("memory", "journal"):
                    rates[kind].append(found[kind][0])
                    singles[kind].append(found[kind][1])
    notes = {"memory": "nothing on disk", "journal": "mapped journal, never synced", "ours": "every commit synced"}
    for kind, note in notes.items():
        title = "ours beside it" if kind == "ours" else f"PySyncObj {version}, {kind}"
        yield Figure(f"{title}: commits, 3 processes, {IN_FLIGHT} in flight", "commits/s", rates[kind], True, note=note)
        yield Figure(f"{title}: one at a time", "ms", singles[kind], False, note=note)


@registry.add("cluster_rejoin")
def cluster_rejoin(_runs: int) -> Iterator[Figure]:
    """A host that missed 100,000 entries: from the start of its process until it holds all that is committed."""
    took = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name, Trio(Path(name)) as trio:
        for _ in range(REJOINS):
            leader = trio.leader()
            away = next(node for node in NODES if node != leader)
            trio.kill(away)
            trio.calls(leader, BEHIND, 4 * IN_FLIGHT)
            wanted = trio.status(leader)[0]["index"]
            started = time.perf_counter()
            trio.start(away)
            found = trio.status(away)[0]["index"]
            took.append(time.perf_counter() - started)
            if found < wanted:
                raise Skipped(f"{host_id(away)} is ready at {found}, not {wanted}")
    note = f"{BEHIND:,} entries; {REJOINS} runs; the ledger's process alone"
    yield Figure("a host far behind, until it is up to date", "s", took, False, must=5.0, note=note)
