"""Simulated devices that play a script are judged as real ones are: heat, faults, and work that goes where it can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.gpu import heat_policy
from actorgrid.actors.gpu.messages import Inventory
from tests.gpu.rig import Rig

pytestmark = pytest.mark.system
MakeRig = Callable[..., Rig]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "play.yaml"


@pytest.fixture
def host(script: Path, make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(heat_policy, "CALM_S", 0.2)
    play(script, "{at_s: 0, load_percent: 5}")
    return make_rig("simulated:2xH100-80GB", probe_interval_s=0.5, simulated_script=str(script)).up()


def play(script: Path, *steps: str) -> None:
    """Have the script be another, at once: from its beginning."""
    written = script.with_suffix(".new")
    written.write_text("steps:\n" + "".join(f"  - {step}\n" for step in steps))
    written.rename(script)


def rows(rig: Rig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.ask(Inventory())
    return found


def test_a_device_that_gets_hot_takes_nothing_new_until_it_is_cool(host: Rig, script: Path) -> None:
    play(script, "{at_s: 0, gpus: [0], celsius: 20}", "{at_s: 0.2, gpus: [0], celsius: 91, ramp: true}")
    host.until(lambda: len(host.coordinator._core.mirror.unhealthy) == 1, "it to be set aside")
    host.submit("a", "b", gpus=1)
    host.until(lambda: len(host.allocations()) == 1, "one of them placed")
    assert [held["gpu_indexes"] for held in host.allocations().values()] == [[1]]
    play(script, "{at_s: 0, celsius: 40}")
    host.wait_placed("a", "b")


def test_faults_of_a_script_are_faults_of_the_device(host: Rig, script: Path) -> None:
    play(script, "{at_s: 0, gpus: [0], fault: lost}", "{at_s: 0, gpus: [1], xid: 48}")
    host.until(lambda: {row["health"] for row in rows(host)} == {"lost", "failed"}, "both to be out")
    assert "XID 48" in rows(host)[1]["health_reason"]
    host.submit("a", gpus=1)
    host.settle()
    assert host.state("a") == "queued"
    play(script, "{at_s: 0, fault: none, load_percent: 7}")
    host.until(lambda: rows(host)[0]["utilization_percent"] == 7, "the one that came back")
    host.wait_placed("a")
    assert rows(host)[1]["health"] == "failed", "what failed stays failed until its driver is loaded anew"


def test_a_script_that_is_none_is_told_and_what_was_played_goes_on(host: Rig, script: Path) -> None:
    play(script, "{at_s: 0, load_percent: 33}")
    host.until(lambda: rows(host)[0]["utilization_percent"] == 33, "the script")
    play(script, "{at_s: 0, heat: 33}")
    host.until(lambda: any("heat" in note for note in host.coordinator.status()["notes"]), "what is wrong with it")
    assert rows(host)[0]["utilization_percent"] == 33
