"""A host with a cgroup v2 that it may write, in a virtual machine: the kernel holds hostile jobs to their grants.

One boot for all. Machines are emulated: nothing here says how fast anything is.
"""

from __future__ import annotations

import compileall
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import virtual_machines
from tests.virtual_machines import BOOT_S, REPOSITORY, Guest
from tests.work.cgroup_guest import CHECKS, FORKS_MAX

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.virtual_machine, pytest.mark.timeout(900)]

CHECK_S = 200.0
PROGRAM = f"""
mount -t cgroup2 none /sys/fs/cgroup && echo "+cpu +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
mount -t tmpfs -o mode=1777 none /tmp; mount -t tmpfs none /var/lib; mount -t tmpfs -o mode=755 none /run
ip link set lo up
exec {shlex.quote(sys.executable)} -X faulthandler -m tests.work.cgroup_guest
"""


def _compile() -> None:
    """Have all modules compiled: the guest cannot keep what it compiles, and would do so in each process."""
    for folder in (REPOSITORY / "actorgrid", REPOSITORY / "tests" / "work"):
        compileall.compile_dir(folder, quiet=2)


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, dict[str, Any]]]:
    why = virtual_machines.why_not("ip")
    if why is not None:
        pytest.skip(why)
    made_of = virtual_machines.parts()
    if isinstance(made_of, str):
        pytest.skip(made_of)
    _compile()
    with tempfile.TemporaryDirectory() as folder:
        guest = Guest(Path(folder), "guest", made_of, PROGRAM)
        try:
            assert guest.hear(BOOT_S) == {"check": "up"}
            found: dict[str, dict[str, Any]] = {}
            for name in CHECKS:
                found[name] = guest.hear(CHECK_S)
                assert found[name].get("check") == name and "error" not in found[name], guest.story(str(found[name]))
            yield {name: each["found"] for name, each in found.items()}
        finally:
            guest.kill()


def test_a_grant_says_that_the_kernel_enforces_it(told: dict[str, dict[str, Any]]) -> None:
    found = told["enforced"]
    assert found["kind"] == "cgroup"
    kernel = {name for name, who in found["said"].items() if who == "kernel"}
    assert kernel >= {"files", "processes", "memory", "cpu", "pids", "devices"}, found


def test_a_hog_of_processors_is_held_to_those_it_was_granted(told: dict[str, dict[str, Any]]) -> None:
    assert told["cpu"]["state"] == "succeeded", told["cpu"]
    quota, period, used_ns = map(int, told["cpu"]["said"].split())
    assert (quota, period) == (20_000, 100_000)
    assert used_ns < 2 * quota * 1000  # of both its processes, in each period


def test_the_kernel_ends_what_takes_more_memory_and_the_error_has_its_name(told: dict[str, dict[str, Any]]) -> None:
    assert (told["memory"]["before"], told["memory"]["code"]) == (64 * 2**20, "MemoryLimitExceeded"), told["memory"]
    assert told["memory"]["left"] == []


def test_a_fork_bomb_ends_at_the_limit_of_its_group(told: dict[str, dict[str, Any]]) -> None:
    found = told["pids"]
    assert found["is_ours"] and found["left"] == [], found
    _up, said = found["said"].splitlines()
    assert said.startswith("stopped by BlockingIOError") and 0 < int(said.split()[-1]) < FORKS_MAX


def test_a_node_that_was_not_granted_is_refused_and_others_are_not(told: dict[str, dict[str, Any]]) -> None:
    assert told["devices"] == {"state": "succeeded", "said": ["6", "1"]}  # ENXIO, as outside; EPERM


def test_what_leaves_its_session_and_its_parent_ends_with_its_group(told: dict[str, dict[str, Any]]) -> None:
    assert told["kill"] == {"state": "succeeded", "left": 0, "groups": []}


def test_the_next_job_runs(told: dict[str, dict[str, Any]]) -> None:
    assert told["next_runs"] == {"state": "succeeded", "said": "runs\n"}
