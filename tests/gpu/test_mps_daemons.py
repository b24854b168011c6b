"""MPS daemons of a host, by the real coordinator over stubs: NVIDIA's library, and its program that controls MPS."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.gpu import host_registration, mps_shares
from actorgrid.actors.gpu.messages import JoinMps
from actorgrid.actors.gpu.watched_devices import mps_in
from tests.gpu.drivers.mps_stub import MpsStub
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.rig import Rig
from tests.processes import is_alive, until

pytestmark = pytest.mark.system
MakeRig = Callable[..., Rig]
UUID = "GPU-11111111-0000-0000-0000-000000000000"


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsStub]:
    stub = MpsStub(tmp_path)
    for name, value in stub.variables.items():
        monkeypatch.setenv(name, value)
    yield stub
    stub.close()


@pytest.fixture
def rig(nvml: StubDriver, mps: MpsStub, make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(host_registration, "TELL_AGAIN_S", 0.2)
    nvml.add_gpu(0)
    return make_rig("auto", probe_interval_s=0.5, probe_timeout_s=60, mps=True).up()


def status(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = rig.coordinator.status()["mps"]
    return found


def granted(rig: Rig, *job_ids: str, user_id: str = "local") -> list[str]:
    """The ids of the attempts of jobs with a share each, which are placed."""
    rig.submit(*job_ids, gpus=0.25, user_id=user_id)
    rig.wait_placed(*job_ids)
    return [rig.job(id)["attempts"][-1]["attempt_id"] for id in job_ids]


def join(rig: Rig, work_id: str, user_id: str = "local", why_not: str = "") -> str:
    return str(rig.ask(JoinMps(work_id, UUID, user_id, why_not)))


def is_told(rig: Rig) -> bool:
    """Whether the ledger has the word of this host that MPS holds the shares of its GPU."""
    return UUID in mps_in(rig.coordinator._ledger.hosts["host-a"])


def test_shares_of_one_tenant_are_under_one_daemon_of_their_gpu(rig: Rig, mps: MpsStub) -> None:
    rig.until(lambda: is_told(rig), "the word of the host")
    one, two = granted(rig, "a", "b")
    pipe = join(rig, one)
    assert join(rig, two) == pipe
    (daemon,) = mps.daemons()
    assert daemon["CUDA_VISIBLE_DEVICES"] == UUID
    assert daemon["CUDA_MPS_PIPE_DIRECTORY"] == pipe
    assert [(one["shares"], one["state"]) for one in status(rig)["daemons"]] == [(2, "running")]
    assert daemon["pid"] in rig.coordinator._mps.own_pids()
    assert len(rig.coordinator._mps.own_pids()) == 2, "its server, too"


def test_no_two_tenants_are_under_one_daemon(rig: Rig, mps: MpsStub) -> None:
    (ours,) = granted(rig, "a")
    (theirs,) = granted(rig, "b", user_id="bob@physics")
    assert join(rig, ours) != join(rig, theirs, "bob@physics")
    assert len(mps.living()) == 2
    assert {one["tenant"] for one in status(rig)["daemons"]} == {"default", "physics"}


def test_a_daemon_that_dies_is_named_and_started_again_and_the_word_comes_back_with_new_work(
    rig: Rig, mps: MpsStub
) -> None:
    (work,) = granted(rig, "a")
    join(rig, work)
    rig.until(lambda: is_told(rig), "the word of the host")
    (pid,) = mps.living()
    mps.broken.touch()
    os.kill(pid, signal.SIGKILL)
    rig.until(lambda: any(f"process {pid}, has died" in note for note in rig.coordinator.status()["notes"]), "a note")
    rig.until(lambda: not is_told(rig), "the word to be taken back")
    (late,) = granted(rig, "b")
    assert join(rig, late) == "", "new shares run without, and do not wait"
    rig.until(lambda: "does not start" in status(rig)["daemons"][0]["why"], "a further try")
    assert "the stub is broken" in status(rig)["daemons"][0]["why"]
    mps.broken.unlink()
    rig.until(lambda: status(rig)["daemons"][0]["state"] == "running", "it to run again")
    assert sorted(status(rig)["without"]) == sorted([work, late])
    assert not is_told(rig)
    rig.end("a")
    rig.end("b")
    rig.until(lambda: is_told(rig), "the word of the host")


def test_a_daemon_outlives_the_coordinator_and_is_known_again(rig: Rig, mps: MpsStub) -> None:
    (work,) = granted(rig, "a")
    pipe = join(rig, work)
    rig.node.servers.pop("gpu_coordinator").stop("it is started anew")
    rig.start_coordinator()
    assert join(rig, work) == pipe
    assert len(mps.daemons()) == 1
    rig.until(lambda: is_told(rig), "the word of the host")


def test_one_that_died_meanwhile_leaves_its_work_without(rig: Rig, mps: MpsStub) -> None:
    (work,) = granted(rig, "a")
    join(rig, work)
    rig.node.servers.pop("gpu_coordinator").stop("it is started anew")
    (pid,) = mps.living()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid), "its end")
    rig.start_coordinator()
    rig.until(lambda: rig.coordinator.status()["registered"] and work in status(rig)["without"], "it to be known")


def test_a_daemon_that_nobody_uses_ends(rig: Rig, mps: MpsStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_shares, "IDLE_S", 0.5)
    (work,) = granted(rig, "a")
    pipe = join(rig, work)
    rig.end("a")
    rig.until(lambda: not status(rig)["daemons"], "its end")
    assert not mps.living()
    assert not Path(pipe).exists()


def test_who_comes_while_a_daemon_ends_gets_the_next_one(
    rig: Rig, mps: MpsStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work,) = granted(rig, "a")
    join(rig, work)
    rig.end("a")
    rig.settle()
    with monkeypatch.context() as at_once:
        at_once.setattr(mps_shares, "IDLE_S", 0.0)
        rig.coordinator._mps.look()
    assert [one["state"] for one in status(rig)["daemons"]] == ["quitting"]
    (late,) = granted(rig, "b")
    assert join(rig, late)
    assert len(mps.daemons()) == 2


def test_work_on_devices_that_mps_is_not_for_is_left_as_it_is(make_rig: MakeRig) -> None:
    rig = make_rig("simulated:1xH100-80GB", mps=True).up()
    (work,) = granted(rig, "a")
    uuid = rig.coordinator._registration.inventory.devices[0].uuid
    assert rig.ask(JoinMps(work, uuid, "local")) == ""
    assert status(rig)["without"] == []


def test_what_cannot_be_under_a_daemon_takes_the_word_back_while_it_runs(rig: Rig, mps: MpsStub) -> None:
    (work,) = granted(rig, "a")
    assert join(rig, work, why_not="it runs in a container") == ""
    rig.until(lambda: not is_told(rig), "no word")
    rig.end("a")
    rig.until(lambda: is_told(rig), "the word of the host")
    assert not mps.daemons()


def test_turned_on_under_work_it_holds_only_what_begins_from_then_on(rig: Rig, mps: MpsStub) -> None:
    rig.host.settings.gpus.mps = False
    rig.coordinator.setting_changed("gpus.mps")
    (work,) = granted(rig, "a")
    assert join(rig, work) == ""
    rig.until(lambda: not is_told(rig), "no word")
    rig.host.settings.gpus.mps = True
    rig.coordinator.setting_changed("gpus.mps")
    assert status(rig)["without"] == [work]
    (late,) = granted(rig, "b")
    assert join(rig, late)
    rig.end("a")
    rig.until(lambda: is_told(rig), "the word of the host")


def test_without_the_program_nothing_is_claimed(
    nvml: StubDriver, make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    nvml.add_gpu(0)
    rig = make_rig("auto", probe_interval_s=0.5, probe_timeout_s=60, mps=True).up()
    (work,) = granted(rig, "a")
    assert join(rig, work) == ""
    assert not is_told(rig)
    assert any("no nvidia-cuda-mps-control" in note for note in rig.coordinator.status()["notes"])
