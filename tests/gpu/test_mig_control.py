"""GPUs are cut and put together over the stub driver: by the operator, and for work that waits; never under work."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.gpu import mig_control, mig_policy, mig_refusals
from actorgrid.actors.gpu.messages import CheckFeasible, CreateMig, DestroyMig, Inventory, MigGpus
from actorgrid.actors.gpu.mig_journal import MigBefore
from actorgrid.actors.gpu.mig_policy import WaitingForGpu, looked_at
from actorgrid.actors.gpu.mig_report import MigInstance
from actorgrid.demand import Demand
from actorgrid.errors import BadRequest, HostError, NotFound, UnknownGpuModel, WrongState
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.rig import Rig
from tests.gpu.test_mig import asked, held, submit

MakeRig = Callable[..., Rig]
GPU = [f"GPU-11111111-0000-0000-0000-{number:012d}" for number in range(3)]


def listed(rig: Rig) -> list[str]:
    return sorted(row["device_id"] for row in rig.ask(Inventory()))


def mode(nvml: StubDriver, number: int = 0) -> str:
    key = f"{number}.mig_mode="
    said = [line for line in [f"{key}{nvml.values[f'{number}.mig_mode']}", *nvml.was_set()] if line.startswith(key)]
    return said[-1].partition("=")[2]


def note(rig: Rig) -> dict[str, Any]:
    return dict(json.loads(rig.host.paths.mig_gpus_file.read_text()))


def profiles(rig: Rig) -> dict[str, list[str]]:
    devices = rig.coordinator._ledger.hosts[rig.host.host_id]["devices"]
    return {device["uuid"]: device.get("profiles", []) for device in devices}


@pytest.fixture
def host(nvml: StubDriver, make_rig: MakeRig) -> Rig:
    nvml.add_gpu(0)
    nvml.add_gpu(1)
    return make_rig("auto", probe_interval_s=0.5).up()


@pytest.fixture
def dynamic(nvml: StubDriver, make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(mig_policy, "JOIN_AFTER_S", 1e9)
    monkeypatch.setattr(mig_control, "RETRY_S", 0.1)
    monkeypatch.setattr(mig_refusals, "BACK_S", 0.5)
    nvml.add_gpu(0)
    nvml.add_gpu(1)
    return make_rig("auto", probe_interval_s=0.5, mig="dynamic").up()


def test_an_operator_cuts_a_free_gpu_and_puts_it_together(nvml: StubDriver, host: Rig) -> None:
    made = host.ask(CreateMig(GPU[0], "3g.40gb"))
    host.until(lambda: listed(host) == sorted([made, GPU[1]]), "the instance in its GPU's place")
    (first, _) = host.ask(MigGpus())
    assert (first["gpu"], first["enabled"], first["index"]) == (GPU[0], True, None)
    assert [(each["uuid"], each["made_for_work"]) for each in first["instances"]] == [(made, False)]
    submit(host, "a", gpu_profile="3g.40gb")
    host.wait_placed("a")
    with pytest.raises(WrongState, match="work is on it"):
        host.ask(DestroyMig(made))
    with pytest.raises(HostError, match="Insufficient Resources"):
        host.ask(CreateMig(GPU[0], "7g.80gb"))
    host.end("a")
    host.ask(DestroyMig(made))
    host.until(lambda: listed(host) == GPU[:2], "the GPU to be whole again")
    assert mode(nvml) == "0"
    host.submit("b", "c", gpus=1)
    host.wait_placed("b", "c")
    assert note(host) == {}, "what an operator made is not the agent's"


def test_what_an_operator_cannot_have_is_refused_by_name(nvml: StubDriver, host: Rig) -> None:
    host.submit("a", "b", gpus=1)
    host.wait_placed("a", "b")
    with pytest.raises(WrongState, match="work is on it"):
        host.ask(CreateMig(GPU[0], "3g.40gb"))
    with pytest.raises(BadRequest, match="no such profile"):
        host.ask(CreateMig(GPU[0], "8g.99gb"))
    with pytest.raises(NotFound):
        host.ask(CreateMig("GPU-none", "3g.40gb"))
    with pytest.raises(NotFound):
        host.ask(DestroyMig("MIG-none"))
    host.end("a")
    host.end("b")
    nvml.fault("nvmlGpuInstanceCreateComputeInstance", 4)
    with pytest.raises(HostError, match="Insufficient Permissions"):
        host.ask(CreateMig(GPU[0], "3g.40gb"))
    assert mode(nvml) == "0", "and nothing of it is left"
    host.submit("c", "d", gpus=1)
    host.wait_placed("c", "d")


def test_work_that_waits_has_a_free_gpu_cut_for_it(nvml: StubDriver, dynamic: Rig) -> None:
    dynamic.submit("whole", gpus=1)
    dynamic.wait_placed("whole")
    dynamic.ask(CheckFeasible(asked(gpu_profile="3g.40gb")))
    submit(dynamic, "a", gpu_profile="3g.40gb")
    dynamic.wait_placed("a")
    (free,) = set(GPU[:2]) - set(held(dynamic)["whole"])
    assert dynamic.allocations()["a.1"]["gpu_parents"] == [free]
    submit(dynamic, "b", gpu_profile="4g.40gb")
    dynamic.wait_placed("b")
    assert dynamic.allocations()["b.1"]["gpu_parents"] == [free], "the GPU that is cut already"
    submit(dynamic, "c", gpu_profile="1g.10gb")
    dynamic.settle()
    assert dynamic.state("c") == "queued", "nothing is cut under work"
    dynamic.end("whole")
    dynamic.wait_placed("c")
    dynamic.until(lambda: all(each["made"] for each in note(dynamic).values()), "the note of what was made")
    noted = note(dynamic)
    assert {uuid: (each["enabled"], each["kept"], each["making"]) for uuid, each in noted.items()} == {
        uuid: (False, [], "") for uuid in sorted(GPU[:2])
    }
    assert sorted(uuid for each in noted.values() for uuid in each["made"]) == listed(dynamic)


def test_instances_that_nobody_has_go_when_work_waits_for_whole_gpus(nvml: StubDriver, dynamic: Rig) -> None:
    submit(dynamic, "a", gpu_profile="4g.40gb")
    dynamic.wait_placed("a")
    submit(dynamic, "b", gpu_profile="4g.40gb")
    dynamic.wait_placed("b")
    for wish in ({"gpus": 1}, {"gpus": 2}, {"gpu_profile": "2g.20gb"}, {"gpus": 1, "gpu_models": ["H100"]}):
        dynamic.ask(CheckFeasible(asked(**wish)))  # both are cut now, and will not be for ever
    with pytest.raises(UnknownGpuModel):
        dynamic.ask(CheckFeasible(asked(gpu_profile="2g.48gb")))
    dynamic.end("b")
    dynamic.submit("w1", "w2", gpus=1)
    dynamic.until(lambda: len(dynamic.allocations()) == 2, "one of them on the GPU that is whole")
    dynamic.end("a")
    dynamic.wait_placed("w1", "w2")
    dynamic.until(lambda: json.loads(dynamic.host.paths.mig_gpus_file.read_text()) == {}, "the note to be gone")
    assert (mode(nvml), mode(nvml, 1)) == ("0", "0")


def test_what_a_crash_left_is_put_together_by_the_next_start(nvml: StubDriver, make_rig: MakeRig) -> None:
    nvml.add_gpu(0, mig=2)
    nvml.put({f"0.mig.{n}.{key}": value for n in range(2) for key, value in (("profile", "3g.40gb"), ("mib", 40_448),
              ("uuid", f"MIG-{n}"))})  # fmt: skip
    rig = make_rig("auto", probe_interval_s=0.5)
    note = {GPU[0]: {"enabled": False, "kept": ["MIG-0"]}, "GPU-of-another-time": {"enabled": True, "kept": []}}
    rig.host.paths.mig_gpus_file.write_text(json.dumps(note))
    rig.up()
    rig.until(lambda: listed(rig) == ["MIG-0"], "the agent's own to be gone, and the other one to stay")
    rig.until(lambda: GPU[0] not in rig.coordinator.status()["mig"]["before"], "the note to be gone")
    assert mode(nvml) == "1"


def test_a_driver_that_refuses_is_told_of_and_asked_again(nvml: StubDriver, dynamic: Rig) -> None:
    nvml.fault("nvmlDeviceSetMigMode", 4)
    submit(dynamic, "a", gpu_profile="3g.40gb")
    dynamic.until(lambda: "Insufficient Permissions" in dynamic.coordinator.status()["mig"]["refused"], "the reason")
    dynamic.submit("w1", "w2", gpus=1)
    dynamic.wait_placed("w1", "w2")
    for id in ("w1", "w2"):
        dynamic.end(id)
    nvml.fault("nvmlDeviceSetMigMode", None)
    dynamic.wait_placed("a")
    dynamic.until(lambda: dynamic.coordinator.status()["mig"]["refused"] == "", "it to be told no more")


def test_one_host_of_several_is_chosen_by_all_alike() -> None:
    from actorgrid.actors.gpu.mig_policy import CutGpu, OwnParts, WaitingForGpu, next_change
    from actorgrid.actors.gpu.mig_report import MigGpu, MigProfile
    from actorgrid.demand import Demand

    def record(host_id: str) -> Any:
        device = {"uuid": f"GPU-{host_id}", "index": 0, "memory_mib": 81_559, "model": "H100", "profiles": ["3g.40gb"]}
        return {"host_id": host_id, "state": "up", "devices": [device]}

    hosts = {id: record(id) for id in ("a", "b", "c")}
    profile = MigProfile("3g.40gb", 40_448, 2, None)
    for number in range(20):
        waiting = [WaitingForGpu(f"job{number}", Demand(gpu_count=1, gpu_milli=428, gpu_models=("MIG 3g.40gb",)))]
        chosen = [
            next_change(
                OwnParts(id, (MigGpu(f"GPU-{id}", "H100", 81_559, None, False, False, (), (profile,)),), (), (), {}),
                *(waiting, hosts, (), (), True),
            )
            for id in hosts
        ]
        (cut,) = [each for each in chosen if each is not None]
        assert isinstance(cut, CutGpu)
        demand = Demand(gpu_count=1, gpu_milli=428, gpu_models=("MIG 3g.40gb",), hosts=("b",))
        tied = [
            next_change(
                OwnParts(id, (MigGpu(f"GPU-{id}", "H100", 81_559, None, False, False, (), (profile,)),), (), (), {}),
                *([WaitingForGpu(f"job{number}", demand)], hosts, (), (), True),
            )
            for id in hosts
        ]
        assert tied == [None, CutGpu("GPU-b", "3g.40gb"), None], "the one host that it may be on"


def test_a_gpu_that_was_made_ready_and_not_cut_is_whole_again_after_the_next_start(
    nvml: StubDriver, make_rig: MakeRig
) -> None:
    nvml.add_gpu(0, mig_mode=1)
    rig = make_rig("auto", probe_interval_s=0.5)
    rig.host.paths.mig_gpus_file.write_text(json.dumps({GPU[0]: {"enabled": False, "kept": []}}))
    rig.up()
    rig.until(lambda: mode(nvml) == "0", "MIG to be off as it was")
    rig.until(lambda: rig.coordinator.status()["mig"]["before"] == {}, "the note to be gone")
    rig.submit("w", gpus=1)
    rig.wait_placed("w")


def test_a_library_that_dies_under_the_cut_leaves_the_note_of_how_the_gpu_was(nvml: StubDriver, dynamic: Rig) -> None:
    nvml.fault("nvmlSystemGetDriverVersion", "abort")  # asked for with the list, when the mode is set already
    submit(dynamic, "a", gpu_profile="3g.40gb")
    dynamic.until(lambda: "ended before" in dynamic.coordinator.status()["mig"]["refused"], "its probe to be lost")
    nvml.fault("nvmlSystemGetDriverVersion", None)
    dynamic.wait_placed("a")
    noted = json.loads(dynamic.host.paths.mig_gpus_file.read_text())
    (parent,) = dynamic.allocations()["a.1"]["gpu_parents"]
    assert (noted[parent]["enabled"], noted[parent]["kept"]) == (False, [])


@pytest.mark.system
def test_what_a_library_that_dies_in_the_middle_has_left_goes_again(
    nvml: StubDriver, host: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_control, "RETRY_S", 0.1)
    nvml.put({"1.mig_mode": 1, "1.mig.0.profile": "1g.10gb", "1.mig.0.mib": 9984, "1.mig.0.made": 1})
    host.until(lambda: host.coordinator._registration.inventory.can_cut, "a list")
    nvml.fault("nvmlGpuInstanceCreateComputeInstance", "abort")
    with pytest.raises(HostError, match="ended before it said"):
        host.ask(CreateMig(GPU[0], "3g.40gb"))
    assert note(host)[GPU[0]]["making"] == "3g.40gb"
    nvml.fault("nvmlGpuInstanceCreateComputeInstance", None)
    host.until(lambda: nvml.was_set()[-1] == "0.mig_mode=0", "the GPU to be as it was")
    assert "0.mig.0.made=0" in nvml.was_set()
    assert "1.mig.0.made=0" not in nvml.was_set(), "nobody here made that one"
    host.until(lambda: note(host) == {}, "the note to be gone")
    host.until(lambda: GPU[0] in listed(host), "it to be whole")


@pytest.mark.system
def test_work_that_waits_gets_its_instance_after_one_was_left_unfinished(nvml: StubDriver, dynamic: Rig) -> None:
    nvml.fault("nvmlGpuInstanceCreateComputeInstance", "abort")
    submit(dynamic, "a", gpu_profile="7g.80gb")
    dynamic.until(lambda: "ended before" in dynamic.coordinator.status()["mig"]["refused"], "its probe to be lost")
    nvml.fault("nvmlGpuInstanceCreateComputeInstance", None)
    dynamic.wait_placed("a")


def test_a_uuid_that_the_driver_gives_again_is_not_the_operators_any_more(nvml: StubDriver, dynamic: Rig) -> None:
    submit(dynamic, "a", gpu_profile="3g.40gb")
    dynamic.wait_placed("a")
    (gpu,) = dynamic.allocations()["a.1"]["gpu_parents"]
    dynamic.until(lambda: not dynamic.coordinator.status()["mig"]["changing"], "the change to be over")
    made = dynamic.ask(CreateMig(gpu, "4g.40gb"))
    dynamic.ask(DestroyMig(made))
    submit(dynamic, "b", gpu_profile="4g.40gb")
    dynamic.wait_placed("b")
    assert held(dynamic)["b"] == [made], "drivers name an instance by its place"
    rows = [each for row in dynamic.ask(MigGpus()) for each in row["instances"]]
    assert [each["made_for_work"] for each in rows] == [True, True]


def test_nothing_is_cut_or_joined_before_the_ledger_has_been_heard(nvml: StubDriver, make_rig: MakeRig) -> None:
    nvml.add_gpu(0, mig=1)
    nvml.put({"0.mig.0.profile": "3g.40gb", "0.mig.0.mib": 40_448, "0.mig.0.uuid": "MIG-0"})
    rig = make_rig("auto", probe_interval_s=3600)
    rig.host.paths.mig_gpus_file.write_text(json.dumps({GPU[0]: {"enabled": False, "kept": []}}))
    rig.start_coordinator()  # and no ledger: somebody may have the instance
    rig.until(lambda: bool(rig.coordinator._registration.inventory.devices), "the devices")
    rig.coordinator._mig.look()
    assert rig.coordinator.status()["mig"]["changing"] is False
    assert not rig.coordinator._mig._is_withheld(["MIG-0"]), "listed here, and the ledger has not been told"


def test_one_look_is_for_all_that_comes_together_and_for_what_may_start(
    nvml: StubDriver, make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add_gpu(0)
    rig = make_rig("auto", probe_interval_s=3600, mig="dynamic").up()
    rig.submit("first")
    looks: list[int] = []
    monkeypatch.setattr(rig.coordinator._mig, "look", lambda _leases: looks.append(1))
    wish: Any = {"gpus": 0.142, "gpu_models": ["MIG 1g.10gb"]}
    rig.submit(*(f"j{number}" for number in range(20)), depends_on=["first"], **wish)
    rig.until(lambda: bool(looks), "a look")
    rig.settle()
    assert len(looks) == 1
    assert rig.coordinator._mig._jobs_waiting() == [], "none of them may start yet"
    rig.end("first")
    rig.settle()
    assert len(rig.coordinator._mig._jobs_waiting()) == 20


def test_a_host_that_may_not_cut_says_so_and_leaves_the_work_to_others(
    nvml: StubDriver, dynamic: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_refusals, "BACK_S", 1e6)
    assert all(profiles(dynamic).values())
    nvml.fault("nvmlDeviceSetMigMode", 4)
    submit(dynamic, "a", gpu_profile="3g.40gb")
    dynamic.until(lambda: not any(profiles(dynamic).values()), "the ledger to be told of no profile", timeout_s=60)
    with pytest.raises(UnknownGpuModel):
        dynamic.ask(CheckFeasible(asked(gpu_profile="3g.40gb")))
    dynamic.submit("w1", "w2", gpus=1)
    dynamic.wait_placed("w1", "w2")


def test_an_instance_that_somebody_makes_beside_the_agents_is_not_the_agents(
    nvml: StubDriver, dynamic: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(dynamic, "a", gpu_profile="3g.40gb")
    dynamic.wait_placed("a")
    (gpu,) = dynamic.allocations()["a.1"]["gpu_parents"]
    dynamic.until(lambda: bool(note(dynamic)[gpu]["made"]), "the note of what was made")
    own = note(dynamic)[gpu]["made"]
    before = MigBefore(False, (), "", tuple(own))
    theirs = MigInstance("MIG-theirs", "3g.40gb", 40_448)
    assert before.own([MigInstance(own[0], "3g.40gb", 40_448), theirs]) == set(own)


def test_what_a_crash_left_of_a_cut_is_the_agents_and_no_more() -> None:
    crashed = MigBefore(False, ("MIG-kept",), "3g.40gb", ("MIG-own",))
    there = [MigInstance(uuid, profile, 1) for uuid, profile in (
        ("MIG-kept", "3g.40gb"), ("MIG-own", "1g.10gb"), ("MIG-theirs", "2g.20gb"), ("MIG-new", "3g.40gb"),
        ("MIG-newer", "3g.40gb"))]  # fmt: skip
    assert crashed.own(there) == {"MIG-own", "MIG-new"}
    earlier = MigBefore(False, ("MIG-kept",))
    assert earlier.own(there) == {each.uuid for each in there} - {"MIG-kept"}, "as the version before took it"


def test_refusals_that_last_are_believed_at_once_and_others_after_some(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = mig_refusals.MigRefusals()
    refusals.refused("a", "MIG cannot be switched on: Insufficient Permissions", 0.0)
    refusals.refused("b", "In use by another client", 0.0)
    assert refusals.withdrawn(0.0) == {"a"}
    assert refusals.withdrawn(mig_refusals.BACK_S) == frozenset()
    refusals.refused("a", "Insufficient Permissions", 60.0)
    assert refusals.withdrawn(60.0 + mig_refusals.BACK_S) == {"a"}, "twice as long"
    refusals.refused("b", "In use by another client", 60.0)
    refusals.refused("b", "In use by another client", 60.0)
    assert "b" in refusals.withdrawn(60.0)
    refusals.cut("b")
    assert "b" not in refusals.withdrawn(60.0)


def test_leases_are_looked_at_however_many_jobs_wait() -> None:
    wish = Demand(gpu_count=1, gpu_milli=428, gpu_models=("MIG 3g.40gb",))
    jobs = [WaitingForGpu(f"j{number}", wish) for number in range(100)]
    leases = [WaitingForGpu(f"l{number}", wish) for number in range(100)]
    both = looked_at(jobs, leases)
    assert [len([each for each in both if each.id.startswith(kind)]) for kind in "jl"] == [32, 32]
    assert len(looked_at(jobs[:3], leases)) == 64 and len(looked_at(jobs, [])) == 64
    assert looked_at(jobs, leases[:1])[-1].id == "l0"
