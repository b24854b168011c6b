"""What simulated devices read over time, as a script says: load, heat, power, memory, faults and XIDs.

No I/O and no clock. A script is YAML, of which JSON is a part::

    repeat_s: 600                                             # begin again after that; without it the last step holds
    steps:
      - {at_s: 0, load_percent: 20}                           # all devices
      - {at_s: 60, gpus: [0, 1], celsius: 60}
      - {at_s: 120, gpus: [0, 1], celsius: 95, ramp: true}    # evenly from 60 s to 120 s
      - {at_s: 150, gpus: [3], fault: lost}
      - {at_s: 180, gpus: [3], fault: none}
      - {at_s: 200, gpus: [2], xid: 48}

Each value holds until a later step says another; one that no step has given yet is what the device would read anyway.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actorgrid.errors import InvalidSetting

from .readings import Readings

STEPS_MAX = 10_000
INDEX_MAX = 1023
Fault = Literal["none", "lost", "failed", "unknown"]
_FAULTS: dict[Fault, str] = {
    "lost": "it is lost, by its script",
    "failed": "it has failed, by its script",
    "unknown": "nobody can say how it is, by its script",
}
_HINT = "docs/gpus.md shows a script"


class ScriptStep(BaseModel):
    """What is so from a moment on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_s: float = Field(ge=0, le=1e9)
    gpus: tuple[int, ...] | None = Field(default=None, max_length=INDEX_MAX + 1)
    """By index; without it all."""
    load_percent: float | None = Field(default=None, ge=0, le=100)
    celsius: float | None = Field(default=None, ge=-50, le=250)
    watts: float | None = Field(default=None, ge=0, le=10_000)
    memory_mib: int | None = Field(default=None, ge=0, le=2**30)
    ramp: bool = False
    """Whether its values are come to evenly, from those before it, and are reached at this moment."""
    fault: Fault | None = None
    xid: int | None = Field(default=None, ge=1, le=10_000)
    """Told once, when the moment comes."""


class SimulationFile(BaseModel):
    """A script as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repeat_s: float | None = Field(default=None, gt=0, le=1e9)
    steps: tuple[ScriptStep, ...] = Field(min_length=1, max_length=STEPS_MAX)


_VALUES = ("load_percent", "celsius", "watts", "memory_mib")


@dataclass(slots=True)
class _Line:
    """One value of one device: at which moments it is what, and whether it is come to evenly."""

    moments: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    ramps: list[bool] = field(default_factory=list)

    def at(self, now_s: float) -> float | None:
        place = bisect.bisect_right(self.moments, now_s)
        before = self.values[place - 1] if place else None
        if place == len(self.moments) or not self.ramps[place] or before is None:
            return before
        began, ends = self.moments[place - 1], self.moments[place]
        return before + (self.values[place] - before) * (now_s - began) / (ends - began)


class SimulationScript:
    """A script that was read; *count* devices play it. Raises InvalidSetting for a text that is none."""

    def __init__(self, text: str, count: int) -> None:
        told = _parse(text)
        self.repeat_s = told.repeat_s
        self._lines: dict[tuple[int, str], _Line] = {}
        self._faults: dict[int, tuple[list[float], list[Fault]]] = {}
        self._xids: list[tuple[float, int, int]] = []
        for step in sorted(told.steps, key=lambda step: step.at_s):
            if self.repeat_s is not None and step.at_s >= self.repeat_s:
                raise InvalidSetting("a step of the script is never reached", asked=f"at_s: {step.at_s:g}", hint=_HINT)
            for index in range(count) if step.gpus is None else step.gpus:
                self._take(index, step)

    def _take(self, index: int, step: ScriptStep) -> None:
        for name in _VALUES:
            value = getattr(step, name)
            if value is not None:
                line = self._lines.setdefault((index, name), _Line())
                line.moments.append(step.at_s)
                line.values.append(float(value))
                line.ramps.append(step.ramp)
        if step.fault is not None:
            moments, faults = self._faults.setdefault(index, ([], []))
            moments.append(step.at_s)
            faults.append(step.fault)
        if step.xid is not None:
            self._xids.append((step.at_s, index, step.xid))

    def _moment(self, elapsed_s: float) -> float:
        return elapsed_s if self.repeat_s is None else math.fmod(elapsed_s, self.repeat_s)

    def readings(self, index: int, elapsed_s: float, modelled: Readings) -> Readings:
        """What the device reads so long after the beginning; *modelled*: what it would read without a script."""
        now_s = self._moment(elapsed_s)
        fault = self._fault(index, now_s)
        if fault == "unknown":
            return Readings.none(_FAULTS[fault], unknown=_FAULTS[fault])
        if fault != "none":
            return Readings.none(_FAULTS[fault], error=_FAULTS[fault])
        load, celsius, watts, memory = (self._value(index, name, now_s) for name in _VALUES)
        return replace(
            modelled,
            utilization_percent=modelled.utilization_percent if load is None else round(load, 1),
            temperature_celsius=modelled.temperature_celsius if celsius is None else round(celsius, 1),
            power_watts=modelled.power_watts if watts is None else round(watts, 1),
            memory_used_mib=modelled.memory_used_mib if memory is None else round(memory),
        )

    def load_percent(self, index: int, elapsed_s: float) -> float | None:
        """How busy the device is by the script: its modelled heat and power follow from that."""
        return self._value(index, "load_percent", self._moment(elapsed_s))

    def xids(self, from_s: float, to_s: float) -> Iterable[tuple[int, int]]:
        """The XIDs told after *from_s* and until *to_s*, with the devices' indexes: each of one round once."""
        if self.repeat_s is not None and to_s - from_s >= self.repeat_s:
            from_s = to_s - self.repeat_s  # what a sample that came too late has missed is told once
        for at_s, index, xid in self._xids:
            if self.repeat_s is None:
                is_due = from_s < at_s <= to_s
            else:
                is_due = math.floor((to_s - at_s) / self.repeat_s) > math.floor((from_s - at_s) / self.repeat_s)
                is_due = is_due and to_s >= at_s
            if is_due:
                yield index, xid

    def _value(self, index: int, name: str, now_s: float) -> float | None:
        line = self._lines.get((index, name))
        return None if line is None else line.at(now_s)

    def _fault(self, index: int, now_s: float) -> Fault:
        moments, faults = self._faults.get(index, ([], []))
        place = bisect.bisect_right(moments, now_s)
        return faults[place - 1] if place else "none"


def _parse(text: str) -> SimulationFile:
    import yaml  # only where there is a script: no process of a host has it else

    try:
        return SimulationFile.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise InvalidSetting(f"the script of simulated devices is no YAML: {error}", hint=_HINT) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise InvalidSetting(
            f"the script of simulated devices: {where}: {first['msg']}", asked=f"{first['input']!r:.80}", hint=_HINT
        ) from error
