"""``chaos``: whole clusters on virtual time, with faults; what was violated, and the line that replays it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .call import CommandContext, json_option, pass_call
from .chaos_gossip import gossip, gossip_figures
from .chaos_routing import routing_figures
from .chaos_state import state_figures
from .printing import say
from .show import progress, table

if TYPE_CHECKING:
    from actorgrid.chaos.mutants.catalogue import Hunt
    from actorgrid.chaos.simulator.run import RunResult

VIOLATED_CODE = 1
TRACE_LINES = 40
SHOWN_FAILURES = 5


@click.group()
def command() -> None:
    """Run clusters of the real cores on virtual time, with seeded faults."""


command.add_command(gossip)
command.add_command(gossip_figures)
command.add_command(routing_figures)
command.add_command(state_figures)


@command.command("list")
@json_option
@pass_call
def list_scenarios(call: CommandContext, /) -> None:
    """List the scenarios."""
    from actorgrid.chaos.simulator import scenario

    rows = [[name, scenario.find(name).says] for name in scenario.names()]
    if call.json:
        call.document([{"scenario": name, "says": says} for name, says in rows])
    else:
        table(["SCENARIO", "WHAT HAPPENS"], rows, "there are none")


@command.command()
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--seeds", type=click.IntRange(1, 1_000_000), help="Seeds of each scenario [20; 1 with --seed].")
@click.option("--seed", type=click.IntRange(0), help="The first seed [1].")
@click.option("--without", type=click.IntRange(0), multiple=True, metavar="N", help="Leave out strike N (repeat).")
@click.option("--mutant", metavar="NAME", help="Plant a bug; `chaos mutants` lists them.")
@click.option("--hostile-learner", is_flag=True, help="Add a learner whose key is in the wrong hands.")
@click.option("--trace", is_flag=True, help="Print all that happened in every run.")
@json_option
@pass_call
def run(
    call: CommandContext,
    /,
    scenarios: Sequence[str],
    seeds: int | None,
    seed: int | None,
    without: Sequence[int],
    mutant: str | None,
    hostile_learner: bool,
    trace: bool,
) -> int:
    """Play scenarios, all of them or those named, a run per seed.

    Leaves with 1 when anything was violated, and prints for each failure the line that replays it.
    """
    from actorgrid.chaos.mutants import catalogue
    from actorgrid.chaos.simulator import scenario
    from actorgrid.chaos.simulator.node import SimulatedHost
    from actorgrid.chaos.simulator.run import play

    chosen = list(dict.fromkeys(scenarios)) or scenario.names()
    for name in chosen:
        scenario.find(name)
    node_class = SimulatedHost if mutant is None else catalogue.find(mutant).node_class
    first = 1 if seed is None else seed
    count = seeds or (20 if seed is None else 1)
    done: list[RunResult] = []
    interrupted = False
    try:
        with progress(call.json or trace) as report:
            for name in chosen:
                for number in range(first, first + count):
                    result = play(name, number, node_class, trace, without, hostile_learner)
                    done.append(result)
                    report(f"{name} {number}", len(done), len(chosen) * count)
                    if trace and not call.json:
                        say("\n".join(result.trace))
    except KeyboardInterrupt:
        interrupted = True
    failed = [result for result in done if not result.held]
    shown = [_explained(result, node_class, bool(without) or trace) for result in failed[:SHOWN_FAILURES]]
    if call.json:
        call.document(
            {
                "runs": len(done),
                "violations": len(failed),
                "interrupted": interrupted,
                "scenarios": _summary(done),
                "failures": [_failure(result, mutant) for result in [*shown, *failed[SHOWN_FAILURES:]]],
                **({"results": [asdict(result) for result in done]} if trace else {}),
            }
        )
    else:
        _print(done, shown, len(failed), mutant)
    if interrupted:
        raise KeyboardInterrupt
    return VIOLATED_CODE if failed else 0


@command.command()
@click.argument("names", nargs=-1, metavar="[MUTANT]...")
@click.option("--seeds", type=click.IntRange(1, 1_000_000), default=2_000, show_default=True, help="Seeds at most.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first seed.")
@click.option("--markdown", is_flag=True, help="Print the table as it stands in the documentation.")
@json_option
@pass_call
def mutants(call: CommandContext, /, names: Sequence[str], seeds: int, seed: int, markdown: bool) -> int:
    """Hunt the bugs planted in cores and hosts: each must be caught.

    Leaves with 1 when one was not.
    """
    from actorgrid.chaos.mutants import catalogue

    chosen = list(dict.fromkeys(names)) or list(catalogue.MUTANTS)
    for name in chosen:
        catalogue.find(name)
    hunts: list[Hunt] = []
    with progress(call.json) as report:
        for name in chosen:
            hunts.append(catalogue.hunt(name, seeds, seed))
            report(name, len(hunts), len(chosen))
    if call.json:
        call.document([{**asdict(hunt), "says": catalogue.find(hunt.name).says} for hunt in hunts])
    else:
        rows = [
            [
                hunt.name,
                catalogue.find(hunt.name).says,
                hunt.scenario,
                str(hunt.seeds) if hunt.checker else f"not in {hunt.seeds}",
                hunt.checker or "-",
            ]
            for hunt in hunts
        ]
        columns = ["MUTANT", "WHAT IT DOES WRONG", "SCENARIO", "SEEDS>", "CAUGHT BY"]
        if markdown:
            say("\n".join(_markdown(rows)))
        else:
            table(columns, rows, "there are none")
    return VIOLATED_CODE if any(not hunt.checker for hunt in hunts) else 0


# -- what came of it


def _explained(result: RunResult, node_class: Any, as_it_is: bool) -> RunResult:
    """Shrink a failure to as few faults as it takes; gives it with its trace."""
    from actorgrid.chaos.simulator.run import play
    from actorgrid.chaos.simulator.shrink import shrink

    smaller = result if as_it_is else shrink(result, node_class)
    return play(
        result.scenario, result.seed, node_class, keep_trace=True, without=smaller.without, hostile=result.hostile
    )


def _replay(result: RunResult, mutant: str | None) -> str:
    return result.replay + (f" --mutant {mutant}" if mutant else "")


def _failure(result: RunResult, mutant: str | None) -> dict[str, Any]:
    return {
        "scenario": result.scenario,
        "seed": result.seed,
        "checker": result.checker,
        "what": result.what,
        "replay": _replay(result, mutant),
        "trace": result.trace[-TRACE_LINES:],
    }


def _summary(done: Sequence[RunResult]) -> list[dict[str, Any]]:
    found = []
    for name in dict.fromkeys(result.scenario for result in done):
        runs = [result for result in done if result.scenario == name]
        totals = {figure: sum(run.figures[figure] for run in runs) for figure in runs[0].figures}
        found.append(
            {
                "scenario": name,
                "runs": len(runs),
                "violations": sum(not run.held for run in runs),
                "virtual_s": round(sum(run.virtual_s for run in runs), 3),
                "strikes": sum(run.strikes for run in runs),
                **totals,
            }
        )
    return found


def _print(done: Sequence[RunResult], shown: Sequence[RunResult], failures: int, mutant: str | None) -> None:
    columns = ["SCENARIO", "RUNS>", "VIOLATIONS>", "VIRTUAL S>", "FAULTS>", "BOOTS>", "ENTRIES>", "MESSAGES>", "JOBS>"]
    keys = ("runs", "violations", "virtual_s", "strikes", "boots", "applied", "carried", "jobs")
    rows = [[each["scenario"], *(f"{each[key]:,.0f}" for key in keys)] for each in _summary(done)]
    table(columns, rows, "nothing was run")
    for result in shown:
        say(f"\n{result.scenario}, seed {result.seed}: {result.checker}: {result.what}")
        for line in result.trace[-TRACE_LINES:]:
            say(f"  {line}")
        say(f"replay: {_replay(result, mutant)}")
    if failures > len(shown):
        say(f"\nand {failures - len(shown)} more")


def _markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| mutant | what it does wrong | scenario | seeds until caught | by |"
    yield "| --- | --- | --- | ---: | --- |"
    for name, says, scenario, seeds, checker in rows:
        yield f"| `{name}` | {says} | `{scenario}` | {seeds} | {checker} |"
