"""What keeps work in, each tried on a process of its own: it takes away what it says, and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.actors.work.isolation import calls
from actorgrid.actors.work.isolation.levels import CPU_AT_BASIC, DISK_WATCH, STATED, enforced_at
from actorgrid.actors.work.isolation.probes import MEANS, Means, means_from, try_out

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its uid, mount, or drop capabilities")


def in_child(body: Callable[[], int]) -> int:
    """What *body* gives in a process of its own; the number of the error where it raises one."""
    child = os.fork()
    if child == 0:
        answer = 255
        try:
            answer = body()
        except OSError as error:
            answer = error.errno or 254
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def can(attempt: Callable[[], object]) -> int:
    """0 when it works, else the number of the error."""
    try:
        attempt()
    except OSError as error:
        return error.errno or 254
    return 0


def needs(name: str) -> Means:
    means = try_out()
    if not means.has(name):
        pytest.skip(f"this kernel, or this user, has no {MEANS[name]}: {means.refused[name]}")
    return means


def test_what_was_tried_crosses_processes_and_nonsense_is_nothing() -> None:
    means = try_out()
    assert means_from(means.to_plain()) == means
    assert set(means.held) == set(MEANS)
    assert means_from({"refused": [], "landlock_abi": 7}).best == "off"
    assert means_from(None).held == dict.fromkeys(MEANS, False)


def test_a_level_says_who_enforces_what_and_never_more_than_was_tried() -> None:
    everything = dict.fromkeys(MEANS, True)
    assert enforced_at("off", everything)["files"] == "none"
    assert enforced_at("basic", everything)["files"] == "cooperative"
    assert enforced_at("full", everything)["files"] == enforced_at("full", everything)["processes"] == "kernel"
    assert enforced_at("full", {**everything, "uid": False, "signals": False})["processes"] == "none"
    not_root = {**everything, "uid": False, "mounts": False, "cgroup_pids": False}
    assert enforced_at("full", not_root)["files"] == enforced_at("full", not_root)["pids"] == "kernel"
    assert enforced_at("basic", not_root)["files"] == enforced_at("basic", not_root)["processes"] == "none"
    assert enforced_at("basic", {**everything, "cgroup_pids": False})["pids"] == "none"  # root is not counted
    assert [enforced_at(level, everything)["cpu"] for level in ("off", "basic", "full")] == ["none", "none", "kernel"]
    always = {**everything, CPU_AT_BASIC: True, DISK_WATCH: True}
    assert [enforced_at(level, always)["cpu"] for level in ("off", "basic", "full")] == ["none", "kernel", "kernel"]
    assert enforced_at("basic", everything)["disk"] == "none" and enforced_at("off", always)["disk"] == "cooperative"
    assert all(set(enforced_at(level, {})) == set(STATED) for level in ("off", "basic", "full"))


@pytest.mark.parametrize("abi", [None, 1, 5])
def test_landlock_leaves_what_is_listed_and_shuts_the_rest(tmp_path: Path, abi: int | None) -> None:
    if (abi or 1) > needs("landlock").landlock_abi:
        pytest.skip(f"this kernel's Landlock is ABI {try_out().landlock_abi}")
    shut, own = tmp_path / "shut", tmp_path / "own"
    for folder in (shut, own):
        folder.mkdir()
        (folder / "file").write_text("x")

    def body() -> int:
        calls.gain_no_privileges()
        calls.allow_files([(str(own), calls.EVERYTHING), ("/nowhere", calls.EVERYTHING)], abi)
        own.joinpath("new").write_text("y")
        tried = [
            can(lambda: (shut / "file").read_text()),
            can(lambda: (shut / "file").unlink()),
            can(lambda: os.listdir(shut)),
            can(lambda: (shut / "new").write_text("z")),
        ]
        return 0 if tried == [errno.EACCES] * 4 else 1

    assert in_child(body) == 0
    assert (own / "new").read_text() == "y"


def test_landlock_keeps_signals_in(tmp_path: Path) -> None:
    if needs("landlock").landlock_abi < 6:
        pytest.skip("signals are kept in from ABI 6 on")
    outside = os.getpid()

    def body() -> int:
        calls.gain_no_privileges()
        calls.allow_files([(str(tmp_path), calls.EVERYTHING)])
        return can(lambda: os.kill(outside, 0))

    assert in_child(body) == errno.EPERM


def test_refused_calls_fail_with_eperm_and_threads_still_start() -> None:
    needs("seccomp")

    def body() -> int:
        import threading

        calls.gain_no_privileges()
        calls.refuse_calls()
        thread = threading.Thread(target=lambda: None)  # clone3 is refused, so that clone has to do
        thread.start()
        thread.join()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        from actorgrid.actors.work.linux import CLONE_NEWUSER, unshare

        return 0 if (calls.name_to_handle_at_fails_with(), can(lambda: unshare(CLONE_NEWUSER))) == (1, 1) else 2

    assert in_child(body) == 0


def test_a_machine_whose_numbers_are_not_known_gets_no_filter() -> None:
    assert calls.filter_program("mips") == b""
    for machine in ("x86_64", "aarch64"):
        assert len(calls.filter_program(machine)) % 8 == 0


@root_only
def test_capabilities_do_not_come_back_with_a_program_that_root_executes() -> None:
    needs("capabilities")

    def body() -> int:
        calls.drop_bounding_set()
        os.execv("/bin/sh", ["sh", "-c", "grep -q 'CapEff:.0000000000000000' /proc/self/status"])

    assert in_child(body) == 0


def test_no_new_privs_is_seen_by_the_kernel() -> None:
    def body() -> int:
        calls.gain_no_privileges()
        return 0 if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text() else 1

    assert in_child(body) == 0
