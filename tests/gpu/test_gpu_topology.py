"""How close GPUs are to be, as work asks for it: what hosts tell, what is refused for good, and what waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from actorgrid.actors.cluster.explain.phrases import gang_hosts, needs
from actorgrid.actors.gpu.device import Device
from actorgrid.actors.gpu.device_closeness import most_close, near_among, near_in, near_texts, told_near
from actorgrid.actors.gpu.feasibility import check_feasible, members_on
from actorgrid.actors.gpu.messages import Explain
from actorgrid.actors.gpu.vendors.simulated import simulated_devices, simulated_links
from actorgrid.actors.ledger.record_checks import check_host, host_version, job_version
from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.client.options import TaskOptions
from actorgrid.demand import Demand
from actorgrid.device_words import GPU_TOPOLOGIES
from actorgrid.errors import ActorGridError, TooManyGpus
from actorgrid.hotpath.closeness import CLOSENESS
from actorgrid.models import TaskRequest
from tests.gpu.rig import Rig


def devices_of(spec: str) -> list[Device]:
    return simulated_devices(spec, "some host")


def host(spec: str = "simulated:8xL40S-48GB", **more: Any) -> HostRecord:
    devices = devices_of(spec)
    near = near_texts(devices, lambda device: simulated_links(device, devices))
    told = [
        cast("Any", device.to_record()) | ({"near": near[device.uuid]} if device.uuid in near else {})
        for device in devices
    ]
    fields = {"host_id": "h", "hostname": "box", "cpu_milli": 64_000, "memory_mib": 99_999, "incarnation": 1}
    return cast("HostRecord", fields | {"devices": told} | more)


def asked(gpus: int, word: str, **more: Any) -> Demand:
    return Demand.of_request(TaskRequest(command=["x"], gpus=gpus, gpu_topology=word, **more))  # type: ignore[arg-type]


def test_a_request_and_its_record_say_the_same() -> None:
    assert GPU_TOPOLOGIES == CLOSENESS
    demand = asked(4, "pix")
    assert demand.to_record()["gpu_topology"] == "pix" and Demand.of(demand.to_record()) == demand
    assert demand != asked(4, "") and "gpu_topology" not in asked(4, "").to_record()
    assert asked(1, "pix") == asked(1, "")  # one device is as close to itself as can be
    assert job_version(cast("Any", {"resources": demand.to_record()})) == 10
    assert replace(demand, gpu_count=1).gpu_topology == ""
    for hostile in ("far", 7, None, ["pix"], {"pix": 1}):
        assert Demand.of({**demand.to_record(), "gpu_topology": hostile}) == asked(4, "")


def test_what_is_no_whole_gpu_is_close_to_none() -> None:
    for wrong, why in (
        ({"gpus": 0.5}, "it is about whole GPUs"),
        ({"gpu_profile": "3g.40gb"}, "it is about whole GPUs"),
        ({}, "gpu_topology without gpus"),
        ({"gpus": 2, "gpu_topology": "sys"}, "Input should be"),
    ):
        with pytest.raises(ValidationError, match=why):
            TaskRequest.model_validate({"command": ["x"], "gpu_topology": "nvlink"} | wrong)


def test_room_for_closer_ones_is_room_for_others() -> None:
    assert asked(4, "pix").needs_at_least(asked(4, "node")) and asked(4, "pix").needs_at_least(asked(2, ""))
    assert asked(4, "node").needs_at_least(asked(4, "node"))
    assert not asked(4, "node").needs_at_least(asked(4, "pix")) and not asked(4, "").needs_at_least(asked(2, "node"))


def test_a_host_tells_how_close_its_devices_are() -> None:
    near = near_in(host())
    assert list(near.values()) == [
        "0255", "2055", "5502", "552", "00000255", "00002055", "00005502", "0000552",
    ]  # fmt: skip
    assert set(near_in(host("simulated:8xH100-80GB")).values()) == {
        "01111111", "10111111", "11011111", "11101111", "11110111", "11111011", "11111101", "1111111",
    }  # fmt: skip
    assert near_in(host("simulated:1xH100-80GB")) == {}
    check_host(host(), 10)
    assert host_version(host()) == 10
    for hostile in ("6", "", 12, None, "0" * 65, "a"):
        device = cast("Any", host()["devices"][0] | {"near": hostile})
        assert told_near(device) == ""
        with pytest.raises(ActorGridError):
            check_host(host(devices=[device]), 10)


def test_where_no_link_is_known_a_numa_node_says_it_and_instances_are_close_to_nothing() -> None:
    devices = devices_of("simulated:4xT4-16GB")
    nodes = (0, 0, 1, 0)
    one, two, three, part = (replace(device, numa_node=nodes[at]) for at, device in enumerate(devices))
    part = replace(part, parent="GPU-whole")
    words = {frozenset((one.uuid, three.uuid)): "NV2", frozenset((two.uuid, three.uuid)): "SYS"}

    def links_of(device: Device) -> dict[str, str]:
        return {
            other.uuid: words[frozenset((device.uuid, other.uuid))]
            for other in (one, two, three)
            if frozenset((device.uuid, other.uuid)) in words
        }

    near = near_texts([one, two, three, part], links_of)
    assert near == {one.uuid: "051", two.uuid: "5", three.uuid: "1"}


@pytest.mark.parametrize(
    ("gpus", "word", "found", "hint"),
    [
        (2, "nvlink", "no two that close", "gpu_topology=pix"),
        (3, "phb", "2 on box", "gpus=2 or gpu_topology=node"),
        (5, "node", "4 on box", "gpus=4;"),
    ],
)
def test_what_no_host_has_is_refused_with_what_there_is(gpus: int, word: str, found: str, hint: str) -> None:
    with pytest.raises(TooManyGpus, match=f"no host has {gpus} GPUs that are all as close to each other") as refused:
        check_feasible(asked(gpus, word), [host()])
    assert refused.value.found == found and hint in str(refused.value.hint)


def test_what_some_host_has_is_accepted_and_counted() -> None:
    for gpus, word, members in ((2, "pix", 4), (4, "node", 2), (3, "node", 2), (2, "node", 4)):
        check_feasible(asked(gpus, word), [host("simulated:2xT4-16GB"), host()])
        demand = asked(gpus, word, gang=4, cpus=0)
        assert members_on(demand, host()) == members
    held = {"cpu_milli": 0, "memory_mib": 0, "gpu_indexes": [0], "gpu_milli": 1000, "gpu_memory_mib": 0}
    assert members_on(asked(4, "node", gang=2), host(), [cast("Any", held)]) == 1
    with pytest.raises(ActorGridError, match="no room for a gang of that size"):
        check_feasible(asked(4, "node", gang=3), [host()])
    odd = asked(2, "pix", gpu_affinity=[host()["devices"][at]["uuid"] for at in (1, 2, 3)])
    assert members_on(odd, host()) == 1
    assert near_among([host()["devices"][at] for at in (1, 2, 3)]) == ("055", "502", "520")
    assert most_close(host()["devices"], "pix") == 2 and most_close([], "pix") == 0


def test_people_are_told_what_is_waited_for() -> None:
    record = asked(4, "node").to_record()
    assert needs(record) == "4 whole GPUs as close to each other as node on one host"
    fit = {"hosts": [{"host": "h", "members": 0, "failed": ["gpu_topology"], "missing": {}}]}
    assert gang_hosts(record, fit, str) == ["h has room for none: no GPUs free that are so close to each other"]


def test_a_worker_of_a_session_asks_for_it_too() -> None:
    shape = TaskOptions(gpus=2, gpu_topology="nvlink").shape
    assert shape.lease_request("3.11", 1.0, "lease")["gpu_topology"] == "nvlink"
    assert "gpu_topology" not in TaskOptions(gpus=2).shape.lease_request("3.11", 1.0, "lease")


@given(st.integers(1, 70), st.sampled_from(["H100", "MI300X", "L40S", "Max1550", "M2"]))
def test_simulated_links_go_both_ways(count: int, model: str) -> None:
    devices = devices_of(f"simulated:{count}x{model}-48GB")
    links = {device.uuid: simulated_links(device, devices) for device in devices[:5] + devices[-3:]}
    for one, others in links.items():
        assert one not in others
        assert all(links[other][one] == word for other, word in others.items() if other in links)


def test_work_waits_for_devices_that_are_close(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("simulated:8xL40S-48GB").up()
    ones = [f"one{number}" for number in range(2)]
    uuids = [device["uuid"] for device in rig.coordinator._ledger.hosts["host-a"]["devices"]]
    for number, id in zip((0, 4), ones, strict=True):
        rig.submit(id, gpus=1, gpu_affinity=[uuids[number]])
    rig.wait_placed(*ones)
    rig.submit("four", gpus=4, gpu_topology="node")
    rig.settle()
    assert rig.state("four") == "queued"
    report = rig.ask(Explain(rig.job("four")["resources"], "four"))
    assert not report["fits"] and report["failed"] == {"gpu_topology": 1}
    rig.submit("two", gpus=2, gpu_topology="node", priority=90)
    rig.wait_placed("two")
    assert rig.job("two")["attempts"][0]["gpu_indexes"] == [2, 3]  # as close as can be
    rig.end("two")
    rig.end("one1")
    rig.wait_placed("four")
    assert rig.job("four")["attempts"][0]["gpu_indexes"] == [4, 5, 6, 7]


def test_the_links_that_a_driver_tells_are_gone_by(nvml: Any, make_rig: Callable[..., Rig]) -> None:
    """The real bindings over the stub: four GPUs, of which the second and the last are on one switch."""
    for number in range(4):
        nvml.add_gpu(number, nvlinks=None)
    nvml.put(
        {f"topology.{one}.{other}": 10 if (one, other) == (1, 3) else 50 for other in range(4) for one in range(other)}
    )
    rig = make_rig("auto", probe_interval_s=0.5).up()
    rig.submit("pair", gpus=2, gpu_topology="pxb")
    rig.wait_placed("pair")
    assert rig.job("pair")["attempts"][0]["gpu_indexes"] == [1, 3]
    rig.submit("more", gpus=2, gpu_topology="pxb")
    rig.submit("any", gpus=2)
    rig.wait_placed("any")
    assert rig.state("more") == "queued"
