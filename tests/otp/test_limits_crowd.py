"""Many actors, and too many: limits refuse by name, leave nothing half made, and after an end there is room again."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil
import pytest

from actorgrid.errors import InvalidChildSpec, StartFailed, TooManyActors
from actorgrid.supervisors.child import SupervisorFlags
from actorgrid.supervisors.restart import SupervisorCore
from actorgrid.supervisors.supervisor import CountChildren, StartChild, TerminateChild
from actorgrid.supervisors.tree import Tree
from actorgrid.supervisors.wire import TreeSettings
from tests.otp.limits_servers import HERE, ask, branch, children_of, descriptors, lives, notes, running, until, worker
from tests.processes import is_alive

SIMPLE = SupervisorFlags("simple_one_for_one", intensity=100)
PIDS = Path("/sys/fs/cgroup/pids")
MIB_EACH = 10  # 6 MB is promised; the test wants to be able to say that it is not so


def of_the_tree(tree: Tree) -> set[int]:
    return {process.pid for process in psutil.Process(tree.admin_pid).children(recursive=True)}


def sockets_of(boot: Path) -> set[str]:
    return {entry.name for entry in os.scandir(boot) if not entry.is_dir()}


def test_one_actor_too_many_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    settings = TreeSettings(actors_max=4)  # the root is one
    with running(tmp_path, worker("one"), worker("two"), settings=settings, boot=boot) as tree:
        tree.call("root", StartChild(worker("three")))
        before, processes, sockets, open_ones = (
            lives(tree),
            of_the_tree(tree),
            sockets_of(boot),
            descriptors(root(tree)),
        )
        for spec in (worker("four"), worker("five", register=False), branch("six", SupervisorFlags())):
            with pytest.raises(TooManyActors) as refused:
                tree.call("root", StartChild(spec))
            assert spec.id in refused.value.message and "4 actors live" in refused.value.message
            assert spec.id in refused.value.asked
            assert refused.value.found == "the limit is 4"
            assert refused.value.hint
        assert lives(tree) == before
        assert of_the_tree(tree) == processes
        assert sockets_of(boot) == sockets
        assert descriptors(root(tree)) == open_ones
        assert tree.registry.whereis("four") is None
        assert not [line for line in notes(tmp_path) if line.startswith(("four", "five"))]

        tree.call("root", TerminateChild("one"))
        info = tree.call("root", StartChild(worker("four")))
        assert ask(tree, "four", "pid") == info.pid


def root(tree: Tree) -> int:
    return int(ask(tree, "root", "pid"))


def test_the_limit_counts_all_supervisors_of_the_tree(tmp_path: Path) -> None:
    inner = branch("inner", SupervisorFlags(), worker("one"), worker("two"))
    with running(tmp_path, inner, settings=TreeSettings(actors_max=4)) as tree:
        for supervisor in ("root", "inner"):
            with pytest.raises(TooManyActors):
                tree.call(supervisor, StartChild(worker("three")))
        tree.call("inner", TerminateChild("two"))
        assert ask(tree, tree.call("root", StartChild(worker("three"))).ref, "pid")


def test_a_crashed_actor_has_its_place_when_the_host_is_full(tmp_path: Path) -> None:
    with running(tmp_path, worker("one"), worker("two"), settings=TreeSettings(actors_max=3)) as tree:
        old = lives(tree)["one"][0]
        os.kill(old, signal.SIGKILL)
        until(lambda: children_of(tree)["one"]["restarts"] == 1 and children_of(tree)["one"]["state"] == "up", "it is")
        assert ask(tree, "one", "pid") == lives(tree)["one"][0] != old


def test_a_supervisor_refuses_one_child_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A thousand processes show no more than three do; what is forked from here has the smaller bound too.
    monkeypatch.setattr(SupervisorCore.__init__, "__defaults__", (3,))
    with running(tmp_path, worker("each", register=False), flags=SIMPLE) as tree:
        infos = [tree.call("root", StartChild()) for _ in range(3)]
        processes = of_the_tree(tree)
        with pytest.raises(TooManyActors, match="3 children") as refused:
            tree.call("root", StartChild())
        assert refused.value.hint
        assert of_the_tree(tree) == processes
        tree.call("root", TerminateChild(infos[0].ref))
        assert ask(tree, tree.call("root", StartChild()).ref, "pid")


def test_a_thousand_and_one_children_are_refused_before_one_is_started(tmp_path: Path) -> None:
    children = tuple(worker(f"child_{n}") for n in range(1001))
    with Tree() as tree:
        with pytest.raises(InvalidChildSpec, match="1001 children"):
            tree.up(HERE + "Branch", str(tmp_path), SupervisorFlags(), children)
    assert notes(tmp_path) == []


# -- the kernel gives no process


@pytest.fixture
def pids_group() -> Iterator[Path]:
    """A cgroup that limits processes; skips where there is none to be made."""
    group = PIDS / f"actorgrid-test-{os.getpid()}"
    if not PIDS.is_dir():
        pytest.skip(f"there is no cgroup controller at {PIDS}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made at {PIDS}: {error}")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
    group.rmdir()


def hold_back_forks(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))
    (group / "pids.max").write_text((group / "pids.current").read_text())


@pytest.mark.root
def test_a_supervisor_whose_forks_fail_refuses_and_loses_nothing(tmp_path: Path, pids_group: Path) -> None:
    boot = tmp_path / "boot"
    with running(tmp_path, worker("calm"), boot=boot) as tree:
        pid, before = root(tree), lives(tree)
        hold_back_forks(pids_group, pid)
        sockets, open_ones = sockets_of(boot), descriptors(pid)
        for _ in range(20):
            with pytest.raises(StartFailed) as refused:
                tree.call("root", StartChild(worker("more")))
            assert os.strerror(errno.EAGAIN) in str(refused.value.found)
            assert "pids.max" in str(refused.value.hint)
        assert lives(tree) == before and root(tree) == pid
        assert sockets_of(boot) == sockets
        (pids_group / "pids.max").write_text("max")
        # Links of the start may have been closed meanwhile; twenty failures would leave at least twenty open.
        assert descriptors(pid) <= open_ones, "each failed fork leaves descriptors open"
        assert ask(tree, tree.call("root", StartChild(worker("more"))).ref, "pid")


@pytest.mark.root
def test_a_restart_whose_forks_fail_is_tried_again_until_there_is_room(tmp_path: Path, pids_group: Path) -> None:
    with running(tmp_path, worker("calm"), worker("victim")) as tree:
        before = lives(tree)
        hold_back_forks(pids_group, root(tree))
        (pids_group / "pids.max").write_text("1")  # the root alone; its children are not in the group
        os.kill(before["victim"][0], signal.SIGKILL)
        until(lambda: children_of(tree)["victim"]["restarts"] >= 2, "restarts that failed")
        assert children_of(tree)["victim"]["pid"] is None
        (pids_group / "pids.max").write_text("max")
        until(lambda: children_of(tree)["victim"]["state"] == "up", "it is up again")
        assert ask(tree, "victim", "pid") != before["victim"][0]
        assert lives(tree)["calm"] == before["calm"]


def test_an_actor_whose_socket_cannot_be_made_is_refused_and_the_next_one_starts(tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    with running(tmp_path, worker("calm"), boot=boot) as tree:
        before = lives(tree)
        address = ask(tree, "calm", "me").address
        parent, _, number = address.rpartition(".")
        taken = boot / f"{parent}.{int(number) + 1}"
        taken.touch()
        with pytest.raises(StartFailed) as refused:
            tree.call("root", StartChild(worker("more")))
        assert refused.value.hint
        taken.unlink()
        assert lives(tree) == before
        assert ask(tree, tree.call("root", StartChild(worker("more"))).ref, "pid")


# -- a full house


def pss_kib(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))


@pytest.mark.system
def test_four_hundred_actors_start_answer_lose_one_and_stop_without_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many as half of the free memory holds, if that is less; another number by ACTORGRID_TEST_CROWD."""
    wanted = int(os.environ.get("ACTORGRID_TEST_CROWD", "400"))
    count = min(wanted, psutil.virtual_memory().available // (MIB_EACH * 2**20) // 2)
    boot = tmp_path / "boot"
    each = worker("each", register=False, restart="transient")
    with running(tmp_path, each, flags=SIMPLE, boot=boot) as tree:
        infos = [tree.call("root", StartChild(), 60.0) for _ in range(count)]
        pids = {info.ref: info.pid for info in infos}
        assert len(set(pids.values())) == count
        assert {ref: ask(tree, ref, "pid") for ref in pids} == pids

        name, before = infos[count // 2].id, lives(tree)
        os.kill(before[name][0], signal.SIGKILL)
        until(lambda: children_of(tree)[name]["restarts"] == 1, "it is started again")
        until(lambda: children_of(tree)[name]["state"] == "up", "it is back")
        after = lives(tree)
        assert after[name][0] != before[name][0]
        assert {**after, name: None} == {**before, name: None}
        assert ask(tree, children_of(tree)[name]["ref"], "pid") == after[name][0]
        assert tree.call("root", CountChildren())["active"] == count

        sizes = [pss_kib(pid) / 1024 for pid, _ in after.values()]
        processes = of_the_tree(tree) | {tree.admin_pid}
        with capsys.disabled():
            print(f"\n{count} actors: PSS of each, median {median(sizes):.1f} MiB, most {max(sizes):.1f} MiB")
    assert sum(line.endswith(" stop") for line in notes(tmp_path)) == count, "each stopped in order, but the killed one"
    assert not any(map(is_alive, processes))
    assert not boot.exists(), "every socket is gone, with its folder"
