"""MIG instances as devices of a host: given out by profile, and never together with the GPU that they are parts of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.gpu.messages import CheckFeasible, Inventory
from actorgrid.actors.ledger.commands import RegisterHost
from actorgrid.actors.ledger.messages import Query
from actorgrid.demand import Demand
from actorgrid.errors import Overcommit, TooManyGpus, UnknownGpuModel
from actorgrid.models import TaskRequest
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.rig import Rig
from tests.gpu.watched import Watched

MakeRig = Callable[..., Rig]
WHOLE = "GPU-11111111-0000-0000-0000-000000000000"


def asked(**request: Any) -> dict[str, Any]:
    return dict(Demand.of_request(TaskRequest(command=["x"], cpus=0, **request)).to_record())


def submit(rig: Rig, job_id: str, **request: Any) -> None:
    record = asked(**request)
    rig.submit(job_id, gpus=record["gpus"], **{name: record[name] for name in record if name.startswith("gpu_")})


def held(rig: Rig) -> dict[str, list[str]]:
    return {record["owner"]["job_id"]: record["gpu_uuids"] for record in rig.allocations().values()}


def cut_gpu(nvml: StubDriver, number: int, *profiles: str) -> None:
    memory = {"1g.10gb": 9_856, "2g.20gb": 20_096, "3g.40gb": 40_448, "4g.40gb": 40_448}
    nvml.add_gpu(number, mig=len(profiles))
    for place, profile in enumerate(profiles):
        at = f"{number}.mig.{place}"
        nvml.put({f"{at}.profile": profile, f"{at}.mib": memory[profile], f"{at}.uuid": f"MIG-{number}-{place}"})


@pytest.fixture
def cut_host(nvml: StubDriver, make_rig: MakeRig) -> Rig:
    cut_gpu(nvml, 0, "3g.40gb", "2g.20gb")
    nvml.add_gpu(1)
    return make_rig("auto", probe_interval_s=0.5).up()


def test_a_profile_gives_one_whole_instance(cut_host: Rig) -> None:
    submit(cut_host, "a", gpu_profile="3g.40gb")
    submit(cut_host, "b", gpu_profile="2g.20gb", gpu_models=["H100"])
    cut_host.wait_placed("a", "b")
    assert held(cut_host) == {"a": ["MIG-0-0"], "b": ["MIG-0-1"]}
    (record,) = [record for record in cut_host.allocations().values() if record["owner"]["job_id"] == "a"]
    assert (record["gpu_milli"], record["gpu_parents"]) == (428, [WHOLE])
    submit(cut_host, "c", gpu_profile="3g.40gb")
    cut_host.settle()
    assert cut_host.state("c") == "queued"
    cut_host.end("a")
    cut_host.wait_placed("c")


def test_shares_fit_into_instances_that_are_large_enough_and_whole_requests_do_not(cut_host: Rig) -> None:
    submit(cut_host, "whole", gpus=1)
    cut_host.wait_placed("whole")
    submit(cut_host, "share", gpus=0.4)
    cut_host.wait_placed("share")
    submit(cut_host, "next", gpus=1)
    submit(cut_host, "large", gpus=0.5)
    cut_host.settle()
    assert (cut_host.state("next"), cut_host.state("large")) == ("queued", "queued")
    found = held(cut_host)
    assert found["whole"] == ["GPU-11111111-0000-0000-0000-000000000001"]
    assert found["share"] == ["MIG-0-0"], "the other instance is less than that"


def test_what_no_instance_can_serve_is_refused_with_what_there_is(nvml: StubDriver, make_rig: MakeRig) -> None:
    cut_gpu(nvml, 0, "1g.10gb")
    rig = make_rig("auto").up()
    rig.ask(CheckFeasible(asked(gpu_profile="1g.10gb")))
    with pytest.raises(UnknownGpuModel, match=r"3g\.40gb"):
        rig.ask(CheckFeasible(asked(gpu_profile="3g.40gb")))
    with pytest.raises(TooManyGpus, match="cut into instances"):
        rig.ask(CheckFeasible(asked(gpus=1)))


def test_instances_are_listed_with_their_gpu_and_nothing_is_lost_when_they_change(
    nvml: StubDriver, make_rig: MakeRig
) -> None:
    cut_gpu(nvml, 0, "3g.40gb")
    rig = make_rig("auto", probe_interval_s=0.5).up()
    (row,) = rig.ask(Inventory())
    assert (row["device_id"], row["facts"]["parent"], row["facts"]["partition"]) == ("MIG-0-0", WHOLE, "3g.40gb")
    assert row["share_milli"] == 428
    rig.host.settings.gpus.mig = "off"
    rig.coordinator.setting_changed("gpus.mig")
    rig.until(lambda: rig.ask(Inventory()) == [], "no instance to be given out")
    rig.host.settings.gpus.mig = "existing"
    rig.coordinator.setting_changed("gpus.mig")
    rig.until(lambda: len(rig.ask(Inventory())) == 1, "it to be there again")


def test_with_mig_on_and_nothing_cut_a_gpu_takes_nothing(nvml: StubDriver, make_rig: MakeRig) -> None:
    nvml.add_gpu(0, mig_mode=1)
    rig = make_rig("auto", probe_interval_s=0.5).up()
    rig.until(lambda: "MIG is on" in str(rig.ask(Inventory())[0]["unfit"]), "it to say so")
    rig.submit("a", gpus=1)
    rig.settle()
    assert rig.state("a") == "queued"
    with pytest.raises(TooManyGpus):
        rig.ask(CheckFeasible(asked(gpus=1)))


def test_a_gpu_that_is_cut_under_its_work_is_not_given_out_in_parts_until_that_ends(rig: Rig) -> None:
    rig.submit("a", gpus=1, gpu_affinity=[])
    rig.wait_placed("a")
    ((at, uuid),) = [(r["gpu_indexes"][0], r["gpu_uuids"][0]) for r in rig.allocations().values()]
    record = dict(rig.node.request("consensus", Query("hosts", {}))["hosts"][0])
    whole = next(device for device in record["devices"] if device["index"] == at)
    parts = [
        {**whole, "uuid": f"MIG-{n}", "index": 20 + n, "model": f"{whole['model']} MIG 3g.40gb", "parent": uuid,
         "share_milli": 428} for n in range(2)
    ]  # fmt: skip
    kept = ("host_id", "incarnation", "boot_id", "cpu_milli", "memory_mib", "hostname", "state")
    facts = {name: record[name] for name in kept if name in record}
    rig.propose(RegisterHost({**facts, "devices": [*record["devices"], *parts]}))  # type: ignore[typeddict-item]
    submit(rig, "b", gpu_profile="3g.40gb")
    rig.settle()
    assert rig.state("b") == "queued"
    rig.end("a")
    rig.wait_placed("b")
    for number in range(8):
        rig.submit(f"w{number}", gpus=1)
    rig.settle()
    assert uuid not in [uuids for held in rig.allocations().values() for uuids in held["gpu_uuids"]]
    rig.end("b")
    rig.until(lambda: all(rig.state(f"w{number}") == "placed" for number in range(8)), "the whole of it to be free")


def test_the_guard_itself_refuses_a_gpu_twice() -> None:
    from actorgrid.actors.ledger.records import new_allocation
    from actorgrid.actors.ledger.tables.capacity import Capacity

    capacity = Capacity()
    parts: list[Any] = [
        {"uuid": f"MIG-{n}", "index": n, "memory_mib": 40_448, "parent": "GPU-a", "share_milli": 428} for n in (1, 2)
    ]
    devices = [{"uuid": "GPU-a", "index": 0, "memory_mib": 81_559}, *parts, {"uuid": "GPU-b", "index": 3,
               "memory_mib": 81_559, "cut": True}]  # fmt: skip
    host: Any = {"host_id": "h", "cpu_milli": 1000, "memory_mib": 1000, "devices": devices}

    def needs(milli: int) -> Any:
        return {"gpu_count": 1, "gpu_milli": milli, "gpu_memory_mib": 0, "cpu_milli": 0, "memory_mib": 0}

    def give(index: int, milli: int) -> Any:
        found = capacity.check(host, [index], needs(milli))
        where = {"host": "h", "gpu_indexes": [index]}
        allocation = new_allocation(f"a{index}", {"kind": "lease"}, where, found, needs(milli))  # type: ignore[typeddict-item]
        capacity.take(allocation)
        return allocation

    whole = give(0, 300)
    with pytest.raises(Overcommit, match="instance of a GPU that is given out"):
        give(1, 428)
    capacity.give(whole)
    first, second = give(1, 428), give(2, 428)
    with pytest.raises(Overcommit, match="does not have that much left"):
        give(1, 1)
    with pytest.raises(Overcommit, match="instances of device 0"):
        give(0, 1)
    capacity.give(first)
    with pytest.raises(Overcommit, match="instances of device 0"):
        give(0, 1)
    capacity.give(second)
    give(0, 1000)
    with pytest.raises(Overcommit, match="cut into instances, or is about to be"):
        give(3, 1)


def test_a_gpu_whose_instance_vanished_under_its_work_is_not_proposed_as_a_whole(rig: Rig) -> None:
    record = dict(rig.node.request("consensus", Query("hosts", {}))["hosts"][0])
    whole, *others = record["devices"]
    part = {**whole, "uuid": "MIG-0", "index": 20, "model": f"{whole['model']} MIG 3g.40gb", "parent": whole["uuid"],
            "share_milli": 428}  # fmt: skip
    kept = ("host_id", "incarnation", "boot_id", "cpu_milli", "memory_mib", "hostname", "state")
    facts = {name: record[name] for name in kept if name in record}
    rig.propose(RegisterHost({**facts, "devices": [part, *others]}))  # type: ignore[typeddict-item]
    submit(rig, "a", gpu_profile="3g.40gb")
    rig.wait_placed("a")
    rig.propose(RegisterHost({**facts, "devices": record["devices"]}))  # type: ignore[typeddict-item]
    for number in range(8):
        rig.submit(f"w{number}", gpus=1)
    rig.until(lambda: len(rig.allocations()) == 8, "seven whole ones beside it")
    rig.settle()
    assert rig.coordinator.metrics()["grants_refused_total"] == 0
    rig.end("a")
    rig.until(lambda: all(rig.state(f"w{number}") == "placed" for number in range(8)), "the last one")


def test_what_nobody_checked_in_records_of_before_is_not_trusted() -> None:
    from actorgrid.actors.gpu.device_listing import NOT_ASKED, device_rows
    from actorgrid.actors.gpu.feasibility import check_feasible
    from actorgrid.actors.gpu.mig_policy import OwnParts, WaitingForGpu, next_change

    odd = {"profiles": 5, "whole_mib": "x", "parent": ["x"], "share_milli": "much", "cut": 1}
    device = {"uuid": "GPU-a", "index": 0, "memory_mib": 81_559, "model": "H100", "vendor": "x", "source": "probed"}
    hosts: Any = {
        id: {"host_id": id, "state": "up", "cpu_milli": 1000, "memory_mib": 1000, "devices": [{**device, **more}]}
        for id, more in (("a", odd), ("b", {**odd, "profiles": [5], "parent": "GPU-x"}))
    }
    demand = Demand(gpu_count=1, gpu_milli=428, gpu_models=("MIG 3g.40gb",))
    with pytest.raises(UnknownGpuModel):
        check_feasible(demand, hosts.values())
    parts = OwnParts("a", (), (), (), {})
    assert next_change(parts, [WaitingForGpu("j", demand)], hosts, (), (), True) is None
    assert [row["share_milli"] for row in device_rows(hosts, {}, {}, lambda *_: NOT_ASKED)] == [1000, 1000]


def test_gpus_of_one_model_are_asked_for_their_profiles_once(nvml: StubDriver) -> None:
    nvml.add_gpu(0, mig_mode=0)
    nvml.add_gpu(1, mig_mode=0)
    nvml.add_gpu(2, mig_mode=0, name="NVIDIA H200")
    for number in (1, 2):  # whoever is asked has none
        for version in ("", "V"):
            nvml.fault(f"nvmlDeviceGetGpuInstanceProfileInfo{version}", 3, number)
    watched = Watched()
    try:
        first, second, other = watched.report().mig
    finally:
        watched.close()
    assert first.profiles
    assert second.profiles == first.profiles
    assert other.profiles == ()
