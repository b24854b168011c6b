"""``chaos gossip`` and ``chaos gossip-figures``: membership on virtual time, its faults and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from .call import CommandContext, json_option, pass_call
from .printing import say
from .show import progress, table

VIOLATED_CODE = 1
PICTURE = click.Path(dir_okay=False, path_type=Path)


@click.command("gossip")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option(
    "--seeds", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="Seeds of each scenario."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first seed.")
@click.option("--mutants", is_flag=True, help="Hunt the planted bugs instead: each must be caught.")
@json_option
@pass_call
def gossip(call: CommandContext, /, scenarios: Sequence[str], seeds: int, seed: int, mutants: bool) -> int:
    """Play what befalls membership of a few hosts, and the state that they share: all scenarios or those named.

    A violation is told with its seed; the same name with --seed SEED --seeds 1 plays it again, event for event.
    Leaves with 1 when anything was violated, or a planted bug was not caught.
    """
    from actorgrid.chaos.gossip.catalogue import (
        hunt_any,
        mutant_names,
        mutant_says,
        play_any,
        scenario_names,
        scenario_says,
    )

    found: list[dict[str, Any]] = []
    with progress(call.json) as report:
        if mutants:
            for name in mutant_names():
                caught, what = hunt_any(name, seeds)
                says, scenario = mutant_says(name)
                found.append({"mutant": name, "says": says, "scenario": scenario, "seeds": caught, "what": what})
                report(name, len(found), len(mutant_names()))
            failed = any(not each["what"] for each in found)
        else:
            chosen = list(dict.fromkeys(scenarios)) or scenario_names()
            for name in chosen:
                violations = [
                    {"seed": number, "what": what}
                    for number in range(seed, seed + seeds)
                    if (what := play_any(name, number))
                ]
                found.append({"scenario": name, "says": scenario_says(name), "runs": seeds, "violations": violations})
                report(name, len(found), len(chosen))
            failed = any(each["violations"] for each in found)
    if call.json:
        call.document(found)
    elif mutants:
        rows = [
            [each["mutant"], each["says"], each["scenario"], str(each["seeds"]), each["what"] or "-"] for each in found
        ]
        table(["MUTANT", "WHAT IT DOES WRONG", "SCENARIO", "SEEDS>", "CAUGHT BY"], rows, "there are none")
    else:
        rows = [[each["scenario"], str(each["runs"]), str(len(each["violations"])), each["says"]] for each in found]
        table(["SCENARIO", "RUNS>", "VIOLATIONS>", "WHAT HAPPENS"], rows, "nothing was run")
        for each in found:
            for violation in each["violations"][:5]:
                say(f"{each['scenario']}, seed {violation['seed']}: {violation['what']}")
                say(f"  again: actorgrid chaos gossip {each['scenario']} --seed {violation['seed']} --seeds 1")
    return VIOLATED_CODE if failed else 0


@click.command("gossip-figures")
@click.option("--hosts", type=click.IntRange(4, 8_000), default=200, show_default=True, help="How many hosts.")
@click.option("--profile", default="lan", show_default=True, help="lan, lan_fast or wan.")
@click.option(
    "--loss", type=click.FloatRange(0.0, 0.9), default=0.0, show_default=True, help="Share of datagrams lost."
)
@click.option("--slow", type=click.FloatRange(0.0, 1.0), default=0.0, show_default=True, help="Share of slow hosts.")
@click.option("--seconds", type=click.FloatRange(1.0), default=60.0, show_default=True, help="Of virtual time.")
@click.option("--events", type=click.IntRange(1, 1_000), default=10, show_default=True, help="Deaths, and joins.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--plot", "picture", type=PICTURE, metavar="FILE", help="Draw deaths and joins: a .png or .svg file.")
@json_option
@pass_call
def gossip_figures(
    call: CommandContext,
    /,
    hosts: int,
    profile: str,
    loss: float,
    slow: float,
    seconds: float,
    events: int,
    seed: int,
    picture: Path | None,
) -> int:
    """Measure membership of many hosts: how soon a death and a join are known, what it costs, what is invented.

    With slow hosts (which stand still for 10 s at a time), plain SWIM and Lifeguard are compared.
    """
    from actorgrid.actors.membership.profiles import PROFILES
    from actorgrid.chaos.gossip.measures import comparisons, deaths, joins, traffic
    from actorgrid.chaos.gossip.picture import draw
    from actorgrid.errors import BadRequest
    from actorgrid.replay import plots

    if picture is not None:
        plots.check(picture)
        if slow:
            raise BadRequest("there is no picture of slow hosts", asked="--slow, --plot", hint="leave one of them out")
    if profile not in PROFILES:
        raise BadRequest(f"there is no profile {profile!r}", asked=profile, found=f"known: {', '.join(PROFILES)}")
    chosen = PROFILES[profile]
    if slow:
        found: dict[str, Any] = {
            name: asdict(traffic(hosts, each, loss, seed, seconds, slow)) for name, each in comparisons(chosen)
        }
    else:
        died = deaths(hosts, chosen, loss, seed, min(events, hosts // 2))
        joined = joins(hosts, chosen, loss, seed, events)
        found = {
            "traffic": asdict(traffic(hosts, chosen, loss, seed, seconds)),
            "first suspicion, s": _spread(died.first_suspicion),
            "declared dead, s": _spread(died.declared),
            "death known to all, s after that": _spread(died.known_to_all),
            "join known to all, s": _spread(joined.known_to_all),
            "not known to all": {"events": died.missing + joined.missing},
        }
        if picture is not None:
            lost = f"{loss:.0%} of datagrams lost"
            draw(picture, f"{hosts} simulated hosts, profile {profile}, {lost}, {events} of each", died, joined)
    if call.json:
        call.document(found)
    else:
        table(["WHAT", "FIGURES"], [[name, _shown(each)] for name, each in found.items()], "nothing")
    return 0


def _spread(samples: Sequence[float]) -> dict[str, float]:
    if not samples:
        return {"events": 0}
    return {"events": len(samples), "median": round(median(samples), 3), "max": round(max(samples), 3)}


def _shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
