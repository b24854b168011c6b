"""``python -m tests.bench``: every figure the project publishes, with its spread and its machine.

python -m tests.bench                      all; writes bench-results/latest.json too
python -m tests.bench --only sessions      some (repeat --only)
python -m tests.bench --json FILE          where the JSON goes (- for stdout, without the table)
python -m tests.bench --no-peers           without other systems
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from .figures import Figure, Skipped, registry
from .machine import describe

PEERS = (
    "actor_peers",
    "cluster_peers",
    "graph_peers",
    "graph_run_peers",
    "jobs_peers",
    "light_peers",
    "model_gateway_peers",
    "object_peers",
    "offset_allocator",
    "process_pool",
    "raft_peers",
    "ray",
    "serving_peers",
    "state_peers",
)
MODULES = (
    "actors",
    "audit",
    "authorisation",
    "balancing",
    "cluster",
    "cluster_agents",
    "gossip",
    "graph_plans",
    "graph_runs",
    "graphs",
    "gpus",
    "host",
    "isolation",
    "jobs",
    "joining",
    "ledger",
    "ledger_log",
    "light_over_hosts",
    "light_processes",
    "locks",
    "many_links",
    "membership",
    "membership_agents",
    "memory_pool",
    "model_gateway",
    "model_routing",
    "objects",
    "peer_links",
    "peers",
    "people_in_jobs",
    "placement",
    "queued_jobs",
    "raft_core",
    "real_gpu",
    "replay",
    "scale",
    "scheduling",
    "serving_batches",
    "sessions",
    "sessions_afar",
    "state_peers",
    "user_actors",
)
for name in MODULES:
    import_module(f"{__package__}.{name}")  # it adds its benchmarks to the registry


def main() -> int:
    """Run, show, write; the exit status is 1 when a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure, with spread.")
    parser.add_argument("--only", action="append", choices=list(registry.found), help="just this one (repeatable)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--json", metavar="FILE", help="where the JSON goes; - for stdout")
    parser.add_argument("--no-peers", action="store_true", help="leave other systems out")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    arguments = parser.parse_args()
    chosen = arguments.only or [name for name in registry.found if not (arguments.no_peers and name in PEERS)]
    quiet = arguments.json == "-"
    machine = describe()
    if not quiet:
        print(" · ".join(f"{name} {value}" for name, value in machine.items()))
    figures: list[Figure] = []
    skipped: dict[str, str] = {}
    for name in chosen:
        started = time.monotonic()
        if not quiet and sys.stdout.isatty():
            print(f"… {name}", end="\r", flush=True)
        try:
            for figure in registry.found[name](arguments.runs):
                figure = replace(figure, command=f"python -m tests.bench --only {name} --runs {arguments.runs}")
                figures.append(figure)
                if not quiet:
                    _show(figure)
        except Skipped as reason:
            skipped[name] = str(reason)
            if not quiet:
                print(f"{name}: skipped: {reason}")
        if not quiet and sys.stdout.isatty():
            print(f"  {name}: {time.monotonic() - started:.0f} s")
    document: dict[str, Any] = {
        "machine": {**machine, "load_after": os.getloadavg()[0]},
        "figures": [figure.to_dict() for figure in figures],
        "skipped": skipped,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    if quiet:
        print(text)
    else:
        target = Path(arguments.json or "bench-results/latest.json")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n", encoding="utf-8")
        print(f"written to {target}")
    return int(arguments.strict and any(figure.verdict == "MISSED" for figure in figures))


def _show(figure: Figure) -> None:
    spread = f"{_number(min(figure.runs))} … {_number(max(figure.runs))}"
    p99 = f"p99 {_number(figure.p99)}" if figure.p99 is not None else ""
    bar = f"must {_number(figure.must)}" if figure.must is not None else ""
    print(
        f"{figure.name:<44} {_number(figure.median):>9} {figure.unit:<9} {spread:>19}  {p99:<12} {bar:<12}"
        f" {figure.verdict:<8} {figure.note}".rstrip()
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
