"""Figures in the Prometheus format: real readings with their names, and nothing where there is no reading."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actorgrid.actors.telemetry.collect import HostReading, collect
from actorgrid.actors.telemetry.processes import ProcessReading, read_process, read_processes
from actorgrid.actors.telemetry.prometheus import HttpFigures, render
from actorgrid.errors import CallTimeout, NoSuchActor

GPU = {
    "device_id": "GPU-1",
    "vendor": "nvidia",
    "model": "H100-80GB",
    "host": "h1",
    "index": 3,
    "source": "probed",
    "pcie_bus_id": "00000000:81:00.0",
    "memory_total_bytes": 80 * 2**30,
    "memory_allocated_bytes": 2**30,
    "memory_used_bytes": 3 * 2**30,
    "allocated_milli": 250,
    "utilization_percent": 40.0,
    "temperature_celsius": 61.0,
    "power_usage_watts": 300.5,
}


def parse(reading: HostReading, http: HttpFigures | None = None) -> dict[str, list[Any]]:
    text = render(reading, "box", http or HttpFigures()).decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def only(samples: list[Any]) -> Any:
    (sample,) = samples
    return sample


def test_nvidia_readings_have_dcgm_names_units_and_labels() -> None:
    found = parse(HostReading(gpus=[GPU]))
    values = {name: only(found[f"DCGM_FI_DEV_{name}"]).value for name in ("GPU_UTIL", "GPU_TEMP", "POWER_USAGE")}
    assert values == {"GPU_UTIL": 40.0, "GPU_TEMP": 61.0, "POWER_USAGE": 300.5}
    assert only(found["DCGM_FI_DEV_FB_USED"]).value == 3 * 1024
    assert only(found["DCGM_FI_DEV_FB_FREE"]).value == 77 * 1024
    assert only(found["DCGM_FI_DEV_GPU_UTIL"]).labels == {
        "gpu": "3",
        "UUID": "GPU-1",
        "pci_bus_id": "00000000:81:00.0",
        "device": "nvidia3",
        "modelName": "H100-80GB",
        "hostname": "box",
    }


@pytest.mark.parametrize("change", [{"source": "simulated"}, {"source": "declared"}, {"vendor": "amd"}])
def test_dcgm_names_are_for_real_nvidia_devices_only(change: dict[str, str]) -> None:
    found = parse(HostReading(gpus=[GPU | change]))
    assert not [name for name in found if name.startswith("DCGM")]
    assert only(found["actorgrid_gpu_utilization_ratio"]).value == pytest.approx(0.4)


def test_readings_that_do_not_exist_are_absent_not_zero() -> None:
    bare = GPU | dict.fromkeys(
        ("memory_used_bytes", "utilization_percent", "temperature_celsius", "power_usage_watts"), None
    )
    found = parse(HostReading(gpus=[bare]))
    assert not [name for name in found if name.startswith("DCGM")]
    for name in ("memory_used_bytes", "utilization_ratio", "temperature_celsius", "power_watts"):
        assert not found[f"actorgrid_gpu_{name}"]
    assert only(found["actorgrid_gpu_allocated_ratio"]).value == 0.25
    assert only(found["actorgrid_gpu_memory_total_bytes"]).labels["uuid"] == "GPU-1"


def test_an_idle_device_reads_zero() -> None:
    found = parse(HostReading(gpus=[GPU | {"utilization_percent": 0.0}]))
    assert only(found["DCGM_FI_DEV_GPU_UTIL"]).value == 0.0


def test_servers_are_up_or_not_and_their_figures_typed_by_name() -> None:
    figures: dict[str, Any] = {"queue": 3, "seen_total": 9, "odd name!": 1.5, "nothing": None, "yes": True}
    reading = HostReading(servers={"one": figures, "two": None}, restarts={"one": 2}, ready=True)
    found = parse(reading)
    assert {sample.labels["server"]: sample.value for sample in found["actorgrid_up"]} == {"one": 1.0, "two": 0.0}
    assert only(found["actorgrid_queue"]).value == 3
    assert only(found["actorgrid_seen"]).name == "actorgrid_seen_total"
    assert only(found["actorgrid_odd_name_"]).value == 1.5
    assert "actorgrid_nothing" not in found and "actorgrid_yes" not in found
    assert only(found["actorgrid_ready"]).value == 1.0
    assert only(found["actorgrid_server_restarts"]).value == 2


def test_two_servers_that_disagree_on_a_name_do_not_break_the_page() -> None:
    found = parse(HostReading(servers={"one": {"x_total": 1}, "two": {"x": 2, "x_total": 3}}))
    assert [sample.value for sample in found["actorgrid_x"]] == [1, 3]


def test_jobs_by_state_and_processes() -> None:
    process = ProcessReading(1, 100, None, 2.5)
    found = parse(HostReading(jobs={"queued": 4}, processes={"consensus": process}))
    assert only(found["actorgrid_jobs"]).labels == {"state": "queued"}
    assert only(found["actorgrid_process_resident_memory_bytes"]).value == 100
    assert only(found["actorgrid_process_cpu_seconds"]).value == 2.5
    assert not found["actorgrid_process_proportional_memory_bytes"]


def test_requests_are_counted_by_route_and_timed() -> None:
    http = HttpFigures()
    http.answered("GET", "/api/jobs/{job_id}", 200, 0.003)
    http.answered("GET", "/api/jobs/{job_id}", 200, None)
    http.answered("other", "unmatched", 404, None)
    http.note(7, 3)
    http.note(5, 4)
    found = parse(HostReading(), http)
    counts = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for sample in found["actorgrid_http_requests"]
        if sample.name.endswith("_total")
    }
    assert counts == {("/api/jobs/{job_id}", "200"): 2.0, ("unmatched", "404"): 1.0}
    buckets = {
        sample.labels["le"]: sample.value
        for sample in found["actorgrid_http_request_seconds"]
        if sample.name.endswith("_bucket")
    }
    assert (buckets["0.0025"], buckets["0.005"], buckets["+Inf"]) == (0.0, 1.0, 1.0)
    assert only(found["actorgrid_http_connections"]).value == 5
    refused = [sample for sample in found["actorgrid_http_refused_tokens"] if sample.name.endswith("_total")]
    assert only(refused).value == 4


def test_names_are_not_given_twice() -> None:
    own = {"jobs": 1.0, "gpu_power_watts": 2.0, "up": 3.0}
    text = render(HostReading(gpus=[GPU], servers={"one": own}, ready=True), "box", HttpFigures()).decode()
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_our_own_process_is_read() -> None:
    reading = read_process(os.getpid())
    assert reading is not None
    assert reading.rss_bytes > 2**20 and reading.cpu_s > 0
    assert reading.pss_bytes is None or 0 < reading.pss_bytes <= reading.rss_bytes * 2


def test_a_process_that_is_gone_is_left_out() -> None:
    assert set(read_processes({"us": os.getpid(), "gone": 2**22 + 1})) == {"us"}


def test_servers_that_do_not_answer_are_not_up_and_hold_nobody_back() -> None:
    async def ask(name: str, request: Any, _timeout_s: float) -> Any:
        kind = type(request).__name__
        if name == "quiet":
            raise CallTimeout("no answer")
        if name == "fault_detector":
            vital = {"pid": 5, "handled": 1, "silent_s": 0.1, "restarts": 2}
            return {"ready": True, "servers": {"one": vital}}
        if kind == "Query":
            return {"jobs": {"queued": 1}}
        if kind == "Inventory":
            raise NoSuchActor("gone")
        return {"x": 1.0}

    asked: list[dict[str, int]] = []

    async def read(pids: dict[str, int]) -> dict[str, ProcessReading]:
        asked.append(pids)
        return {}

    reading = asyncio.run(collect(ask, ("one", "quiet"), read, ("gateway", 7)))
    assert reading.servers == {"one": {"x": 1.0}, "quiet": None}
    assert reading.gpus == [] and reading.jobs == {"queued": 1}
    assert asked == [{"one": 5, "gateway": 7}]
    assert reading.restarts == {"one": 2}


READ = {
    **GPU,
    "readings": {
        "memory_busy_percent": 7.0,
        "memory_reserved_mib": 551,
        "memory_temperature_celsius": 70.0,
        "energy_millijoules": 5_000,
        "clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
        "pcie_replays": 4,
        "rows_remapped_corrected": 2,
        "rows_remapped_uncorrected": 1,
        "row_remap_failed": False,
        "power_limit_watts": 700.0,
        "links_down": 0,
        "ecc_corrected": 12,
        "ecc_uncorrected": 0,
    },
    "facts": {"minor": 5, "serial": "1651", "driver_version": "600.01", "parent": None, "partition": None},
    "health": "degraded",
    "last_xid": 63,
}


def test_all_of_dcgms_usual_figures_are_there_in_its_units() -> None:
    found = parse(HostReading(gpus=[READ]))
    values = {
        name.removeprefix("DCGM_FI_DEV_"): only(samples).value
        for name, samples in found.items()
        if name.startswith("DCGM")
    }
    assert values == {
        **{"GPU_UTIL": 40.0, "MEM_COPY_UTIL": 7.0, "FB_USED": 3072.0, "FB_FREE": 77 * 1024.0 - 551},
        **{"FB_RESERVED": 551.0, "GPU_TEMP": 61.0, "MEMORY_TEMP": 70.0, "POWER_USAGE": 300.5, "SM_CLOCK": 1980.0},
        **{"TOTAL_ENERGY_CONSUMPTION": 5000.0, "MEM_CLOCK": 2619.0, "PCIE_REPLAY_COUNTER": 4.0, "XID_ERRORS": 63.0},
        **{"UNCORRECTABLE_REMAPPED_ROWS": 1.0, "CORRECTABLE_REMAPPED_ROWS": 2.0, "ROW_REMAP_FAILURE": 0.0},
    }
    assert only(found["DCGM_FI_DEV_SM_CLOCK"]).labels["device"] == "nvidia5", "by the device file, not the place"


def test_an_instance_has_dcgms_labels_for_it() -> None:
    facts = {"minor": 5, "parent": "GPU-whole", "partition": "3g.40gb"}
    labels = only(
        parse(HostReading(gpus=[{**READ, "device_id": "MIG-1", "facts": facts}]))["DCGM_FI_DEV_FB_USED"]
    ).labels
    assert (labels["UUID"], labels["GPU_I_PROFILE"], labels["GPU_I_ID"]) == ("GPU-whole", "3g.40gb", "MIG-1")


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
def test_open_telemetrys_names_are_for_the_real_devices_of_all(vendor: str) -> None:
    found = parse(HostReading(gpus=[{**READ, "vendor": vendor}]))
    assert only(found["hw_gpu_utilization_ratio"]).value == 0.4
    assert only(found["hw_energy_joules"]).value == 5.0
    assert {sample.labels["error_type"]: sample.value for sample in found["hw_errors"]} == {
        "corrected": 12.0,
        "uncorrected": 0.0,
    }
    assert {sample.labels["hw_state"]: sample.value for sample in found["hw_status"]} == {
        "ok": 0.0,
        "degraded": 1.0,
        "failed": 0.0,
    }
    assert only(found["hw_power_watts"]).labels["hw_driver_version"] == "600.01"
    simulated = parse(HostReading(gpus=[{**READ, "vendor": vendor, "source": "simulated"}]))
    assert not [name for name in simulated if name.startswith("hw_")]


def test_health_is_1_at_one_state() -> None:
    found = parse(HostReading(gpus=[READ]))["actorgrid_gpu_health"]
    assert {sample.labels["state"]: sample.value for sample in found if sample.value} == {"degraded": 1.0}
    assert len(found) == 5
