"""Spiking networks: leaky integrate-and-fire neurons with weighted synapses, in steps of fixed length.

Between spikes a neuron's voltage follows dv/dt = (v_rest - v + R I) / tau, which is solved exactly over a step in which
the input is constant (Rotter and Diesmann, "Exact digital simulation of time-invariant linear systems", 1999). At its
threshold it spikes, is reset and takes nothing for its refractory time; its spikes raise the voltages of others by
their weights one step later.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from actorgrid.errors import InvalidWork

from .base import WorkArguments, WorkPlan, WorkType
from .targets import Target, find_target, missing_library

SPIKES_TOLD_MAX = 100_000
EXPLICIT_MAX = 2_000


class RandomWeights(WorkArguments):
    """Synapses drawn by chance: between each two neurons one with this probability."""

    probability: float = Field(ge=0, le=1)
    weight_mv: float = Field(ge=-1_000, le=1_000, description="by how much a spike raises the voltage")
    inhibitory: float = Field(default=0.0, ge=0, le=1, description="the part of neurons whose spikes lower it")
    seed: int = Field(default=0, ge=0, lt=2**32)


class NetworkArguments(WorkArguments):
    """A network, what comes into it, and for how long it runs. Voltages in mV, times in ms, currents as R I in mV."""

    neurons: int = Field(ge=1, le=1_000_000)
    steps: int = Field(ge=1, le=10_000_000)
    dt_ms: float = Field(default=0.1, gt=0, le=100)
    tau_ms: float = Field(default=20.0, gt=0, le=10_000)
    v_rest_mv: float = Field(default=-65.0, ge=-1_000, le=1_000)
    v_reset_mv: float = Field(default=-65.0, ge=-1_000, le=1_000)
    v_threshold_mv: float = Field(default=-50.0, ge=-1_000, le=1_000)
    refractory_ms: float = Field(default=2.0, ge=0, le=10_000)
    drive_mv: float | list[float] = Field(default=20.0, description="R I of each neuron, or one for all")
    noise_mv: float = Field(default=0.0, ge=0, le=1_000, description="standard deviation of its change, per root ms")
    weights: list[list[float]] | RandomWeights | None = Field(
        default=None, description="row: from that neuron, column: to that one; or drawn by chance; or none"
    )
    seed: int = Field(default=0, ge=0, lt=2**32)
    backend: Literal["auto", "numpy", "torch"] = "auto"
    hardware: str | None = Field(
        default=None, max_length=100, description="a device's model, as hosts declare it: runs on a host that has one"
    )
    driver: Target | None = Field(
        default=None, description="of that hardware: called with these arguments as a dict, gives what simulate() gives"
    )

    @model_validator(mode="after")
    def _fits(self) -> NetworkArguments:
        if self.v_threshold_mv <= self.v_reset_mv:
            raise ValueError("v_threshold_mv is above v_reset_mv, or a neuron spikes for ever")
        if isinstance(self.drive_mv, list) and len(self.drive_mv) != self.neurons:
            raise ValueError(f"drive_mv: one number, or {self.neurons} of them; found {len(self.drive_mv)}")
        if isinstance(self.weights, list):
            if self.neurons > EXPLICIT_MAX:
                raise ValueError(f"weights of more than {EXPLICIT_MAX} neurons are drawn by chance")
            if len(self.weights) != self.neurons or any(len(row) != self.neurons for row in self.weights):
                raise ValueError(f"weights: {self.neurons} rows of {self.neurons} numbers")
        if self.driver is not None and self.hardware is None:
            raise ValueError("driver is of hardware: name its model as well")
        return self


class NeuromorphicProcessing(WorkType):
    """Runs a spiking network."""

    name = "neuromorphic_processing"
    summary = "a network of leaky integrate-and-fire neurons, by numpy or torch, or on hardware with a driver"
    arguments = NetworkArguments

    def plan(self, arguments: NetworkArguments) -> WorkPlan:
        """Run it where such hardware is, if it names any; else anywhere."""
        options: dict[str, Any] = {}
        if arguments.hardware is not None:
            options = {"gpus": 1.0, "gpu_models": (arguments.hardware,)}
        return WorkPlan(simulate, (arguments.model_dump(),), options=options)


def simulate(network: dict[str, Any]) -> dict[str, Any]:
    """Run the network that ``NetworkArguments`` describes.

    Gives ``spike_counts`` by neuron, ``spikes`` (the first 100,000 as [step, neuron]), ``spikes_total``, ``rate_hz``
    (the mean), ``voltages_mv`` at the end and ``backend``. Raises InvalidWork for a library or driver that is missing.
    """
    if network["driver"] is not None:
        found: dict[str, Any] = find_target(network["driver"])(network)
        return found
    arrays, name = _arrays(network["backend"])
    return _run(network, arrays, name)


def _arrays(backend: str) -> tuple[Any, str]:
    """numpy, or torch where it was asked for, or where it has a GPU."""
    try:
        import numpy
    except ImportError as error:
        raise missing_library(error, "neuromorphic") from error
    if backend == "numpy":
        return _Numpy(numpy), "numpy"
    try:
        import torch
    except ImportError as error:
        if backend == "torch":
            raise InvalidWork(
                "torch is not installed where this work runs", asked="backend=torch", hint="backend=auto takes numpy"
            ) from error
        return _Numpy(numpy), "numpy"
    if backend == "auto" and not torch.cuda.is_available():
        return _Numpy(numpy), "numpy"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return _Torch(numpy, torch, device), f"torch on {device}"


class _Numpy:
    """What a run needs of arrays, by numpy. Chance is numpy's whatever computes, so that results agree."""

    def __init__(self, numpy: Any) -> None:
        self.numpy = numpy

    def array(self, values: Any) -> Any:
        return self.numpy.asarray(values, dtype="float64")

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        return self.numpy.where(condition, one, other)

    def indexes(self, condition: Any) -> list[int]:
        found: list[int] = self.numpy.flatnonzero(condition).tolist()
        return found

    def rows_sum(self, matrix: Any, rows: list[int]) -> Any:
        return matrix[rows].sum(axis=0)

    def plain(self, values: Any) -> list[float]:
        found: list[float] = values.tolist()
        return found


class _Torch(_Numpy):
    """The same by torch, on its device."""

    def __init__(self, numpy: Any, torch: Any, device: str) -> None:
        super().__init__(numpy)
        self.torch = torch
        self.device = device

    def array(self, values: Any) -> Any:
        return self.torch.as_tensor(self.numpy.asarray(values, dtype="float64"), device=self.device)

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        return self.torch.where(condition, self._full(one), self._full(other))

    def _full(self, value: Any) -> Any:
        return value if self.torch.is_tensor(value) else self.torch.tensor(value, device=self.device).double()

    def indexes(self, condition: Any) -> list[int]:
        found: list[int] = self.torch.nonzero(condition).flatten().tolist()
        return found

    def rows_sum(self, matrix: Any, rows: list[int]) -> Any:
        return matrix[rows].sum(dim=0)


def _run(network: dict[str, Any], arrays: _Numpy, backend: str) -> dict[str, Any]:
    count, steps, dt = network["neurons"], network["steps"], network["dt_ms"]
    chance = arrays.numpy.random.default_rng(network["seed"])
    weights = _weights(network, arrays)
    drive = arrays.array(arrays.numpy.broadcast_to(arrays.numpy.asarray(network["drive_mv"], "float64"), (count,)))
    decay = math.exp(-dt / network["tau_ms"])
    rest, reset, threshold = network["v_rest_mv"], network["v_reset_mv"], network["v_threshold_mv"]
    voltage = arrays.array([rest] * count)
    refractory = round(network["refractory_ms"] / dt)
    free_at = arrays.array([0.0] * count)
    counts = [0] * count
    spikes: list[list[int]] = []
    total = 0
    fired: list[int] = []
    for step in range(steps):
        target = rest + drive
        moved = target + (voltage - target) * decay
        if network["noise_mv"]:
            moved = moved + arrays.array(chance.normal(0.0, network["noise_mv"] * math.sqrt(dt), count))
        if fired and weights is not None:
            moved = moved + arrays.rows_sum(weights, fired)
        voltage = arrays.where(free_at > step, reset, moved)
        crossed = voltage >= threshold
        fired = arrays.indexes(crossed)
        if fired:
            voltage = arrays.where(crossed, reset, voltage)
            free_at = arrays.where(crossed, float(step + 1 + refractory), free_at)
            total += len(fired)
            for neuron in fired:
                counts[neuron] += 1
            spikes += [[step, neuron] for neuron in fired[: SPIKES_TOLD_MAX - len(spikes)]]
    return {
        "spike_counts": counts,
        "spikes": spikes,
        "spikes_total": total,
        "rate_hz": 1000.0 * total / (count * steps * dt),
        "voltages_mv": arrays.plain(voltage),
        "backend": backend,
    }


def _weights(network: dict[str, Any], arrays: _Numpy) -> Any:
    given, count = network["weights"], network["neurons"]
    if given is None or isinstance(given, list):
        return None if given is None else arrays.array(given)
    if count > 20_000:
        raise InvalidWork(
            "a network with synapses has at most 20,000 neurons", asked=f"{count} neurons", hint="leave weights out"
        )
    chance = arrays.numpy.random.default_rng(given["seed"])
    drawn = (chance.random((count, count)) < given["probability"]) * given["weight_mv"]
    drawn[: round(given["inhibitory"] * count)] *= -1.0
    arrays.numpy.fill_diagonal(drawn, 0.0)
    return arrays.array(drawn)
