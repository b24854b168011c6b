"""A real GPU's answers, played again: our code makes the same of them as it did there, and the stub is like it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.gpu.probe_report import FACTS
from actorgrid.actors.gpu.readings import READINGS
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.recording import ReplayedNvml, load, record, stand_in
from tests.gpu.watched import Watched

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
RECORDS = sorted((Path(__file__).parent / "recorded").glob("*.json"))


@pytest.fixture(params=RECORDS, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def as_then(now: Any, then: Any) -> Any:
    """*now* without what the record does not know: fields that came later, for which NVML was not asked then."""
    if isinstance(then, dict) and isinstance(now, dict):
        return {name: as_then(now.get(name), value) for name, value in then.items()}
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [as_then(one, other) for one, other in zip(now, then, strict=True)]
    return now


def test_we_make_of_a_real_gpu_what_we_made_of_it_there(recorded: dict[str, Any]) -> None:
    replayed = ReplayedNvml(pynvml, recorded["calls"])
    vendor = stand_in(replayed)
    report = plain(asdict(vendor.first_report))  # type: ignore[attr-defined]
    readings = plain({uuid: asdict(said) for uuid, said in vendor.read().items()})
    assert as_then(report, recorded["report"]) == recorded["report"]
    assert as_then(readings, recorded["readings"]) == recorded["readings"]
    asked = {call.partition("(")[0] for call in recorded["ours"]}
    other = sorted(call for call in replayed.missing if call.partition("(")[0] in asked)
    assert other == [], "what was asked then is asked otherwise now: record again where there is a GPU"


def test_a_real_gpu_says_values_or_reasons(recorded: dict[str, Any]) -> None:
    (facts,), (said,) = recorded["report"]["facts"], recorded["readings"].values()
    assert [name for name in FACTS if (facts.get(name) is None) != (name in facts["unsupported"])] == []
    assert [name for name in READINGS if (said.get(name) is None) != (name in said["unsupported"])] == []
    assert said["unsupported"].keys() == {"fan_percent", "links_down"}, "of a GPU in a virtual machine, without NVLink"


def test_the_stub_is_like_the_real_one(
    nvml: StubDriver, recorded: dict[str, Any], watch_nvidia: Callable[[], Watched]
) -> None:
    nvml.add_gpu(0, nvlinks=None, slowdown_c=89, shutdown_c=95)  # boards differ in their limits
    nvml.set(driver=recorded["report"]["driver_version"], cuda=13000)
    probe = watch_nvidia()
    report = probe.report()
    ((real_device,), (real_facts,)) = recorded["report"]["devices"], recorded["report"]["facts"]
    device, facts = plain(asdict(report.devices[0])), plain(asdict(report.facts[0]))
    facts["unsupported"].pop("numa_node", None)  # no kernel shows a stub's device, and so where it is
    of_its_own = {"uuid", "serial", "pcie_bus_id", "firmware", "links"}
    assert {name: device[name] for name in real_device if name not in of_its_own} == {
        name: value for name, value in real_device.items() if name not in of_its_own
    }
    assert {name: facts[name] for name in real_facts if name not in of_its_own} == {
        name: value for name, value in real_facts.items() if name not in of_its_own
    }
    (real,), said = recorded["readings"].values(), plain(asdict(probe.read()[report.devices[0].uuid]))
    assert as_then(said["unsupported"], real["unsupported"]) == real["unsupported"]
    assert [name for name in real if type(said[name]) is not type(real[name])] == []


@pytest.fixture
def watch_nvidia() -> Any:
    made: list[Watched] = []

    def begin() -> Watched:
        made.append(Watched(vendor="nvidia"))
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.mark.gpu
def test_the_gpu_here_keeps_the_contract() -> None:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU is here")
    told = plain(record())
    assert told["report"]["outcome"] == "ok" and not told["report"]["problems"]
    for facts in told["report"]["facts"]:
        assert [name for name in FACTS if (facts[name] is None) != (name in facts["unsupported"])] == []
    for said in told["readings"].values():
        assert [name for name in READINGS if (said[name] is None) != (name in said["unsupported"])] == []
        assert said["error"] == said["unknown"] == ""
