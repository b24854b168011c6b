"""What runs in the virtual machine with a cgroup v2 to write: a host with hostile jobs; says what became of each.

A line of JSON for each check, on the second serial port.
"""

from __future__ import annotations

import json
import os
import traceback
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from actorgrid.actors.ledger.kept_apart import enforced_of
from actorgrid.actors.ledger.record_types import HostRecord, JobRecord
from actorgrid.actors.work import attempt_specs, zygote_link
from actorgrid.actors.work.isolation.probes import try_out
from actorgrid.actors.work.limits import pids_max
from actorgrid.actors.work.messages import IsolationAsked
from tests.work.hostile_jobs import DAEMON, STUB_NODES
from tests.work.rig import Rig, wait_for

GROUPS = Path("/sys/fs/cgroup")
ANN = "ann@lab"
FORKS_MAX = 40
SLEEPS_S = "61235"
ASKS = {"cpu_milli": 200, "memory_mib": 64}

# Two processes that want all of a processor, until the kernel has held them back some times.
CPU_HOG = """
import os
group = "/sys/fs/cgroup" + open("/proc/self/cgroup").read().strip().rpartition(":")[2]
child = os.fork()
while True:
    sum(range(20_000))
    stat = dict(line.split() for line in open(group + "/cpu.stat"))
    if child and int(stat["nr_throttled"]) >= 5:
        break
os.kill(child, 9), os.wait()
print(open(group + "/cpu.max").read().strip(), int(stat["usage_usec"]) * 1000 // int(stat["nr_periods"]))
"""
_WAITS = """
import os, time
print("up", flush=True)
while not os.path.exists(os.environ["HOME"] + "/go"):
    time.sleep(0.05)
"""
FORK_BOMB = (
    _WAITS
    + """
count = 0
try:
    while count < 1000:
        if os.fork() == 0:
            os.setsid(), time.sleep(600)
        count += 1
except OSError as error:
    print("stopped by", type(error).__name__, count)
"""
)
MEMORY_FLOOD = (
    _WAITS
    + """
kept = bytearray(40 * 2**20)
for at in range(0, len(kept), 4096):
    kept[at] = 1
time.sleep(600)
"""
)


class Checks:
    """One host; each check gives what the test looks at."""

    def __init__(self) -> None:
        zygote_link.FORK_PATIENCE_S = 120.0  # an emulated machine takes a minute for what others do in a second
        self.rig = Rig(Path("/run/data"))
        self.manager = self.rig.start_manager()

    def _run(self, name: str, program: str, *arguments: str, **fields: Any) -> dict[str, Any]:
        return self.rig.run(name, command=["python3", "-c", program, *arguments], user_id=ANN, **fields)

    def _group(self, attempt_id: str) -> Path:
        (found,) = GROUPS.glob(f"actorgrid-*-{attempt_id}")
        return found

    def enforced(self) -> dict[str, Any]:
        """What was tried, and what a grant says by it."""
        kept = self.rig.node.request("worker_manager", IsolationAsked())
        job = cast("JobRecord", {"user_id": ANN, "resources": ASKS})
        said = enforced_of(cast("HostRecord", {"kept_apart": kept}), job, mps=False)
        assert self.manager._zygote.containment is not None
        return {"kind": self.manager._zygote.containment.kind, "said": said, "missing": try_out().missing()}

    def cpu(self) -> dict[str, Any]:
        """A hog of processors."""
        job = self._run("hog", CPU_HOG, resources=ASKS)
        return {"state": job["state"], "said": self.rig.output("hog.1"), "error": job["error"]}

    def _held_to(self, name: str, program: str, file: str, lower: int, asks: dict[str, int]) -> dict[str, Any]:
        """Run a program whose group has a limit, which is made lower before it goes on; gives what the limit was."""
        self.rig.submit(name, command=["python3", "-c", program], user_id=ANN, resources=asks)
        attempt_id = self.rig.grant(name)
        wait_for(lambda: [self.rig.node.step(0.05), "up" in self.rig.output(attempt_id)][1], what=f"{name} to be up")
        limit = self._group(attempt_id) / file
        before = int(limit.read_text())
        limit.write_text(str(lower))
        (self.rig.dir(attempt_id).path / "home" / "go").touch()
        job = self.rig.ended(attempt_id)
        return {
            "before": before,
            "state": job["state"],
            "said": self.rig.output(attempt_id),
            "code": (job["error"] or {}).get("code"),
            "left": self.rig.marked(attempt_id),
        }

    def memory(self) -> dict[str, Any]:
        """More memory than its group has: less than what it asked for, at which the shim would end it as well."""
        return self._held_to("memory", MEMORY_FLOOD, "memory.max", 32 * 2**20, ASKS)

    def pids(self) -> dict[str, Any]:
        """A fork bomb; its limit is set lower, for this machine's sake."""
        found = self._held_to("bomb", FORK_BOMB, "pids.max", FORKS_MAX, {"cpu_milli": 1000})
        return {**found, "is_ours": found["before"] == pids_max()}

    def devices(self) -> dict[str, Any]:
        """Nodes of GPUs, as of a host that has two: there is a driver for neither."""
        attempt_specs.denied_nodes = lambda *_: [(195, 1)]
        nodes = [f"/dev/nvidia{minor}" for minor in (0, 1)]
        for minor, node in enumerate(nodes):
            os.mknod(node, 0o20666, os.makedev(195, minor))
            os.chmod(node, 0o666)
        job = self._run("nodes", STUB_NODES, *nodes)
        return {"state": job["state"], "said": self.rig.output("nodes.1").split()}

    def kill(self) -> dict[str, Any]:
        """What leaves its session, its parent, its output and its marks."""
        job = self._run("daemon", DAEMON, SLEEPS_S)
        mine = [path for path in Path("/proc").glob("[0-9]*/cmdline") if SLEEPS_S in _read(path)]
        return {"state": job["state"], "left": len(mine), "groups": [str(path) for path in GROUPS.glob("*-daemon.1")]}

    def next_runs(self) -> dict[str, Any]:
        """The next job."""
        job = self._run("next", "print('runs')", resources=ASKS)
        return {"state": job["state"], "said": self.rig.output("next.1")}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


CHECKS: dict[str, Callable[[Checks], dict[str, Any]]] = {
    "enforced": Checks.enforced,
    "cpu": Checks.cpu,
    "memory": Checks.memory,
    "pids": Checks.pids,
    "devices": Checks.devices,
    "kill": Checks.kill,
    "next_runs": Checks.next_runs,
}


def main() -> None:
    """Make all checks."""
    port = os.open("/dev/ttyS1", os.O_RDWR | os.O_NOCTTY)
    tty.setraw(port)

    def say(**words: Any) -> None:
        left = json.dumps(words).encode() + b"\n"
        while left:
            left = left[os.write(port, left) :]

    say(check="up")
    checks = Checks()
    for name, check in CHECKS.items():
        try:
            say(check=name, found=check(checks))
        except Exception:  # noqa: BLE001 - to whoever reads it
            say(check=name, error=traceback.format_exc())


if __name__ == "__main__":
    main()
