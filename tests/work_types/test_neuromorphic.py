"""Spiking networks, against what is known of them in closed form."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from actorgrid.errors import InvalidWork
from actorgrid.work_types.registry import find_work_type

pytest.importorskip("numpy")


def simulated(**given: Any) -> dict[str, Any]:
    kind = find_work_type("neuromorphic_processing")
    plan = kind.plan(kind.checked({"backend": "numpy", **given}))
    assert plan.function is not None
    found: dict[str, Any] = plan.function(*plan.arguments)
    return found


@pytest.mark.parametrize("drive_mv", [16.0, 20.0, 40.0])
def test_a_neuron_of_constant_input_spikes_at_the_rate_of_the_formula(drive_mv: float) -> None:
    tau, refractory, dt = 20.0, 2.0, 0.02
    found = simulated(neurons=1, steps=20_000, dt_ms=dt, tau_ms=tau, refractory_ms=refractory, drive_mv=drive_mv)
    # From reset to threshold: tau ln(RI / (RI - (threshold - rest))), and the refractory time.
    period = refractory + tau * math.log(drive_mv / (drive_mv - 15.0))
    assert found["rate_hz"] == 1000.0 * found["spikes_total"] / 400.0
    steps = [step for step, _ in found["spikes"]]
    between = {second - first for first, second in pairwise(steps)}
    assert len(between) == 1 and between.pop() * dt == pytest.approx(period, abs=2 * dt)


def test_below_its_threshold_it_never_spikes_and_comes_to_rest_above_it_by_its_drive() -> None:
    found = simulated(neurons=2, steps=5_000, drive_mv=[14.9, 0.0])
    assert found["spikes_total"] == 0 and found["voltages_mv"] == pytest.approx([-50.1, -65.0], abs=1e-6)


def test_a_spike_arrives_one_step_later_with_its_weight() -> None:
    found = simulated(
        neurons=3,
        steps=40,
        dt_ms=1.0,
        drive_mv=[1_000.0, 0.0, 0.0],
        refractory_ms=100.0,
        weights=[[0.0, 20.0, -5.0], [0.0, 0.0, 20.0], [0.0, 0.0, 0.0]],
    )
    assert found["spikes"] == [[0, 0], [1, 1], [2, 2]] and found["spike_counts"] == [1, 1, 1]


def test_chance_is_of_the_seed_alone() -> None:
    network: dict[str, Any] = {
        "neurons": 50,
        "steps": 500,
        "drive_mv": 14.0,
        "noise_mv": 2.0,
        "weights": {"probability": 0.2, "weight_mv": 0.5, "inhibitory": 0.2, "seed": 3},
    }
    one, again, other = simulated(**network), simulated(**network), simulated(**network, seed=1)
    assert one == again and one["spikes"] != other["spikes"] and one["spikes_total"] > 0


def test_torch_agrees_with_numpy_where_it_is_there() -> None:
    network: dict[str, Any] = {"neurons": 20, "steps": 300, "drive_mv": 18.0, "noise_mv": 1.0}
    try:
        import torch  # noqa: F401
    except ImportError:
        with pytest.raises(InvalidWork, match="torch is not installed"):
            simulated(**network, backend="torch")
    else:
        by_torch, by_numpy = simulated(**network, backend="torch"), simulated(**network)
        assert by_torch["spikes"] == by_numpy["spikes"]


def drive(network: dict[str, Any]) -> dict[str, Any]:
    return {"neurons": network["neurons"], "backend": network["hardware"]}


def test_hardware_is_a_device_that_hosts_declare_and_its_driver_is_a_function() -> None:
    kind = find_work_type("neuromorphic_processing")
    given = {"neurons": 4, "steps": 1, "hardware": "Loihi2", "driver": f"{__name__}:drive"}
    plan = kind.plan(kind.checked(given))
    assert plan.options == {"gpus": 1.0, "gpu_models": ("Loihi2",)} and plan.function is not None
    assert plan.function(*plan.arguments) == {"neurons": 4, "backend": "Loihi2"}
