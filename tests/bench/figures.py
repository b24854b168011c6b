"""What a benchmark gives: figures with their runs, never one number without its spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


class Skipped(Exception):
    """The benchmark cannot run here; the message says why."""


@dataclass(frozen=True)
class Figure:
    """One quantity. ``runs``: one value per run (each may be a median of many samples). ``p99``: over all samples.

    ``must`` and ``stretch`` are the project's own bars.
    """

    name: str
    unit: str
    runs: Sequence[float]
    higher_is_better: bool
    p99: float | None = None
    must: float | None = None
    stretch: float | None = None
    note: str = ""
    command: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def verdict(self) -> str:
        """Against the bars: ``stretch``, ``must``, ``MISSED``, or nothing where there is no bar."""
        for bar, word in ((self.stretch, "stretch"), (self.must, "must")):
            if bar is not None and (self.median >= bar if self.higher_is_better else self.median <= bar):
                return word
        return "MISSED" if self.must is not None else ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "p99": self.p99,
            "min": min(self.runs),
            "max": max(self.runs),
            "runs": list(self.runs),
            "higher_is_better": self.higher_is_better,
            "must": self.must,
            "stretch": self.stretch,
            "verdict": self.verdict,
            "note": self.note,
            "command": self.command,
        }


Benchmark = Callable[[int], Iterator[Figure]]


@dataclass
class Registry:
    """Benchmarks by name, in the order they were added. Each takes the number of runs."""

    found: dict[str, Benchmark] = field(default_factory=dict)

    def add(self, name: str) -> Callable[[Benchmark], Benchmark]:
        def keep(benchmark: Benchmark) -> Benchmark:
            self.found[name] = benchmark
            return benchmark

        return keep


registry = Registry()


def percentile(samples: Sequence[float], share: float) -> float:
    """The value below which *share* of the samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latency(name: str, runs: Sequence[Sequence[float]], unit: str, scale: float, **more: Any) -> Figure:
    """A figure from runs of samples in seconds: the median of each run, the 99th percentile of all."""
    everything = [sample for run in runs for sample in run]
    return Figure(
        name,
        unit,
        [statistics.median(run) * scale for run in runs],
        higher_is_better=False,
        p99=percentile(everything, 0.99) * scale,
        **more,
    )
