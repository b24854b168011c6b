"""Nothing of a job survives its end, however it forks: for every kind of containment that this machine has."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.commands import CancelJob
from actorgrid.actors.work.containment import KINDS, Containment, Kind, choose
from actorgrid.cli.checks import check_containment
from tests.work import chains
from tests.work.rig import RawClient, Rig, alive, wait_for

pytestmark = pytest.mark.system

CHAINS = 5
HOLDING = [kind for kind in KINDS if kind != "none"]
WALKED_HOP_S = 0.2  # what nothing holds can outrun us: these chains are slow enough to be found


@pytest.fixture(scope="module")
def offered() -> dict[str, Containment]:
    return {kind: choose(kind) for kind in HOLDING}


@pytest.fixture
def name() -> Iterator[str]:
    """Of the chains of one test; what of them is left is killed in the end, so that a failure harms nobody."""
    made = f"chain-{uuid.uuid4().hex}"
    yield made
    while left := chains.found(made):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=KINDS)
def contained(request: pytest.FixtureRequest, offered: dict[str, Containment], make_rig: Callable[..., Rig]) -> Rig:
    """A host that keeps work in that kind; the last, which is none, is there on every machine."""
    if request.param != "none" and not offered[request.param].holds:
        pytest.skip(f"this machine offers no {request.param}: {offered[request.param].why}")
    rig = make_rig(work__containment=request.param)
    rig.start_manager()
    return rig


def hop_s(rig: Rig) -> float:
    return WALKED_HOP_S if rig.context.settings.work.containment == "none" else chains.HOP_S


def begin(rig: Rig, name: str, flag: Path, **fields: Any) -> str:
    rig.submit("a", command=chains.command(name, CHAINS, flag, hop_s(rig)), **fields)
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    rig.node.run_until(flag.exists, what="the chains")
    assert not chains.gone(name)
    return attempt_id


def kill_together(rig: Rig, work_id: str) -> None:
    """Agent, zygote and shim at once, as somebody would who kills all that is ours by name."""
    assert rig.manager is not None
    zygote, shim = rig.manager.status()["zygote_pid"], rig.dir(work_id).shim_pid()
    assert shim is not None
    for pid in (shim, zygote):
        os.kill(pid, signal.SIGKILL)
    rig.kill_manager()
    wait_for(lambda: not alive(shim), what="the shim's end")


def test_cancelled_chains_are_gone(contained: Rig, name: str, tmp_path: Path) -> None:
    attempt_id = begin(contained, name, tmp_path / "flag")
    contained.propose(CancelJob(job_id="a"))
    job = contained.ended(attempt_id)
    assert job["state"] == "cancelled"
    assert chains.gone(name)
    status = contained.dir(attempt_id).read_status()
    assert status is not None
    assert status["containment"] == contained.context.settings.work.containment


def test_chains_that_their_job_leaves_behind_are_gone_with_it(contained: Rig, name: str, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    program = chains.CHAINS.replace("time.sleep(3600)", "sys.exit(3)")
    command = chains.command(name, CHAINS, flag, hop_s(contained))
    job = contained.run("a", command=[*command[:3], program, *command[4:]])
    assert (job["state"], job["attempts"][0]["exit_code"]) == ("failed", 3)
    assert chains.gone(name)


def test_chains_are_gone_with_their_lease(contained: Rig, name: str, tmp_path: Path) -> None:
    attempt_id = begin(contained, name, tmp_path / "flag", max_isolation_s=3.0)
    contained.kill_manager()
    status = wait_for(lambda: contained.dir(attempt_id).read_status(), what="end of the lease")
    assert status["reason"] == "isolated"
    assert chains.gone(name)


def test_chains_are_gone_when_agent_zygote_and_shim_die_together(contained: Rig, name: str, tmp_path: Path) -> None:
    attempt_id = begin(contained, name, tmp_path / "flag", max_isolation_s=60.0)
    kill_together(contained, attempt_id)
    wait_for(lambda: chains.gone(name), what="end of the chains without anybody who is asked to")
    contained.start_manager()
    job = contained.ended(attempt_id)
    assert (job["state"], job["attempts"][0]["state"]) == ("queued", "lost")


def test_the_next_start_ends_what_even_the_guard_could_not(contained: Rig, name: str, tmp_path: Path) -> None:
    attempt_id = begin(contained, name, tmp_path / "flag", max_isolation_s=60.0)
    (guard,) = guards(contained)
    os.kill(guard, signal.SIGSTOP)
    kill_together(contained, attempt_id)
    os.kill(guard, signal.SIGKILL)
    wait_for(lambda: not alive(guard), what="the guard's end")
    contained.start_manager()
    job = contained.ended(attempt_id)
    assert job["state"] == "queued"
    assert chains.gone(name)


def test_a_session_task_leaves_no_chain(contained: Rig, name: str, tmp_path: Path) -> None:
    command = chains.command(name, CHAINS, tmp_path / "flag", hop_s(contained))

    def fork() -> int:
        import subprocess

        return subprocess.Popen(command).pid

    fork.__module__ = "__main__"
    with RawClient(contained.lease("L1", [0])) as client:
        client.welcome()
        assert client.call(fork)
        wait_for((tmp_path / "flag").exists, what="the chains")
        contained.release("L1")
        assert contained.manager is not None
        contained.node.run_until(lambda: not contained.manager._leases.workers(), what="the worker's end")  # type: ignore[union-attr]
    assert chains.gone(name)


def test_a_killed_guard_is_replaced_and_told(contained: Rig, name: str, tmp_path: Path) -> None:
    attempt_id = begin(contained, name, tmp_path / "flag", max_isolation_s=60.0)
    (first,) = guards(contained)
    os.kill(first, signal.SIGKILL)
    second = wait_for(lambda: [pid for pid in guards(contained) if pid != first], what="another guard")
    shim = contained.dir(attempt_id).shim_pid()
    wait_for(lambda: connected(contained, second[0]) >= 2, what="zygote and shim to be known to it")
    assert shim is not None
    kill_together(contained, attempt_id)
    wait_for(lambda: chains.gone(name), what="end of the chains by the other guard")
    wait_for(lambda: not alive(second[0]), what="the guard to leave when it is not needed")


def test_the_guard_holds_nothing_of_the_agent_and_leaves_with_the_last(rig: Rig) -> None:
    rig.submit("a", command=["sleep", "1000"])
    rig.running(rig.grant("a"))
    (guard,) = guards(rig)
    opened = {os.readlink(f"/proc/{guard}/fd/{fd}") for fd in ("0", "1", "2")}
    assert opened == {"/dev/null"}, "who waits for the end of what the agent writes does not wait for the guard"
    rig.propose(CancelJob(job_id="a"))
    rig.ended("a.1")
    rig.kill_manager()
    wait_for(lambda: not alive(guard), what="the guard's end")


def guards(rig: Rig) -> list[int]:
    """The processes that listen on the guard's socket of that host."""
    inode = next(
        (line.split()[6] for line in sockets(rig) if line.split()[5] == "01" and line.split()[3] == "00010000"), ""
    )
    # By their titles first: to look at all that all processes hold takes seconds on a busy machine, and attempts end.
    called = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if title_of(pid) == "actorgrid: guard"]
    return [int(pid) for pid in called if inode and inode in opened_sockets(pid)]


def title_of(pid: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0 ")
    return ""


def connected(rig: Rig, guard: int) -> int:
    """How many connections that guard has taken: those of one that is dying are listed too, for a while."""
    opened = opened_sockets(str(guard))
    return sum(1 for line in sockets(rig) if line.split()[3] != "00010000" and line.split()[6] in opened)


def opened_sockets(pid: str) -> set[str]:
    """The inodes of the sockets that the process holds."""
    found = set()
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]"))
    return found


def sockets(rig: Rig) -> list[str]:
    from actorgrid.actors.work.attempt_specs import guard_path

    path = str(guard_path(rig.paths.work_sockets_dir, rig.tag))
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f" {path}")]


@pytest.mark.parametrize(
    ("kind", "as_root", "as_other"),
    [
        ("cgroup", "runs as root", "runs as the agent's user"),
        ("freezer", "runs as root", "runs as the agent's user"),
        ("pid_namespace", "", ""),
        ("none", "may escape its end", "may escape its end"),
    ],
)
def test_what_work_can_still_do_to_get_away_is_said(kind: Kind, as_root: str, as_other: str) -> None:
    for uid, said in ((0, as_root), (1000, as_other)):
        limit = Containment(kind).limit(uid)
        assert said in limit and bool(limit) == bool(said)


@pytest.mark.parametrize("wanted", KINDS)
def test_doctor_tells_of_the_kind_that_is_set_and_of_its_limit(wanted: Kind) -> None:
    kept = choose(wanted)
    (found,) = check_containment(wanted)
    limit = kept.limit(os.getuid())
    assert found.level == ("note" if limit else "ok")
    assert kept.text in found.text and limit in found.text
    assert bool(found.fix) == bool(limit)
