"""Light processes: what one costs, how fast messages and calls are; and beside BEAM, asyncio and Pykka."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .actor_systems import beam_code, run_program
from .figures import Figure, Skipped, latency, registry
from .light_work import CALLS, MESSAGES, PROCESSES, RING
from .peers import python_with

HERE = Path(__file__).parent
RUN_S = 300.0
Found = dict[str, Any]
_ROWS: tuple[tuple[str, str, str, float, bool, float | None, float | None], ...] = (
    ("spawn_s", "spawn", "µs", 1e6, False, 0.4, 0.25),
    ("bytes", "idle process with its pid", "bytes", 1.0, False, 300.0, 200.0),
    ("ping_pong", "ping-pong", "msg/s", 1.0, True, 5e6, 8e6),
    ("ring", "ring of 1,000", "msg/s", 1.0, True, 5e6, 8e6),
    ("calls", "calls with answers, one at a time", "/s", 1.0, True, 2e6, None),
    ("million_s", "1,000,000 begun and each called once", "s", 1.0, False, 2.0, None),
)


def _figures(title: str, found: list[Found], note: str, bars: bool) -> Iterator[Figure]:
    for key, name, unit, scale, higher, must, stretch in _ROWS:
        runs = [run[key] * scale for run in found if key in run]
        if runs:
            more: dict[str, Any] = {"must": must, "stretch": stretch} if bars else {}
            yield Figure(f"{title}: {name}", unit, runs, higher_is_better=higher, note=note, **more)


def _ours(*arguments: str) -> Found:
    return run_program([sys.executable, "-m", "tests.bench.light_work", *arguments], RUN_S)


@registry.add("light_processes")
def light_processes(runs: int) -> Iterator[Figure]:
    """Ours, against the project's bars."""
    inside = [_ours() for _ in range(runs)]
    yield from _figures("light processes", inside, "" if inside[0]["compiled"] else "plain Python", True)
    yield from _figures("light processes", [run["cpu"] for run in inside], "by the CPU's time", True)
    for run in inside:
        run["timers"].sort()
    late = [[run["timers"][int(0.99 * len(run["timers"]))]] for run in inside]
    yield latency("light processes: timer, 100,000 pending, p99 lateness", late, "ms", 1e3, must=2.0)
    across = [_ours("across") for _ in range(runs)]
    crossing = [run["crossing"] for run in across]
    yield Figure("light processes: from shard to shard", "msg/s", crossing, higher_is_better=True, must=300_000)
    yield latency("light processes: call over shards", [run["trips"] for run in across], "µs", 1e6)


def _beam() -> Found:
    sizes = [MESSAGES, RING, CALLS, PROCESSES]
    with beam_code("peer_light.erl") as (erl, folder):
        limit = ["+P", str(PROCESSES + 10_000)]
        command = [erl, "-noshell", "+S", "1", *limit, "-pa", folder, "-run", "peer_light", "inside", *map(str, sizes)]
        return run_program(command, RUN_S)


@registry.add("light_peers")
def light_peers(runs: int) -> Iterator[Figure]:
    """The same work for each in turn, round after round. At the end raises Skipped for those that did not run."""
    systems: tuple[tuple[str, Callable[[], Found], str], ...] = (
        ("actorgrid", _ours, "one thread"),
        ("BEAM {version}", _beam, "one scheduler"),
        (
            "asyncio {version}",
            lambda: run_program([sys.executable, "-m", "tests.bench.peer_light_asyncio"], RUN_S),
            "a task and a queue each; a tenth of the work",
        ),
        (
            "Pykka {version}",
            lambda: run_program([str(python_with("pykka")), str(HERE / "peer_light_pykka.py")], RUN_S),
            "a thread each; a hundredth of the work, a ring of 100",
        ),
    )
    measured: dict[str, list[Found]] = {title: [] for title, _, _ in systems}
    missing: dict[str, str] = {}
    for _ in range(runs):
        for title, measure, _note in systems:
            if title not in missing:
                try:
                    measured[title].append(measure())
                except Skipped as reason:
                    missing[title] = str(reason)
    for title, _, note in systems:
        found = measured[title]
        if found:
            named = title.format(version=found[0].get("version", ""))
            yield from _figures(named, found, note, False)
            yield from _figures(named, [run["cpu"] for run in found if "cpu" in run], "by the CPU's time", False)
    if missing:
        raise Skipped("; ".join(f"{title.partition(' ')[0]}: {reason}" for title, reason in missing.items()))
