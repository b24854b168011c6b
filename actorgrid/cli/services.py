"""``services``, ``scale``, ``rollback``: what services there are, and changes to them."""

from __future__ import annotations

import time
from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command
from .host_names import hostnames
from .printing import say
from .service_options import replicas_range
from .show import coloured, span, table


@click.command(name="services")
@click.argument("words", metavar="[NAME | rm NAME...]", nargs=-1, shell_complete=candidates.services)
@click.option("--now", is_flag=True, help="With rm: end replicas at once, with the requests that they have.")
@host_command
def services(call: CommandContext, words: tuple[str, ...], now: bool) -> None:
    """List services; show one; remove some.

    With NAME, its replicas and revisions; rm NAME removes it: its replicas end once they have finished what they have.
    A service that is itself called rm is removed by: services rm rm.
    """
    if words[:1] == ("rm",):
        if not words[1:]:
            raise click.UsageError("services rm NAME: which service?")
        _remove(call, words[1:], now)
    elif now:
        raise click.UsageError("--now is about services rm NAME")
    elif len(words) > 1:
        raise click.UsageError("one NAME, or rm and then names")
    elif words:
        _show(call, words[0])
    else:
        _list(call)


@click.command(name="scale")
@click.argument("service", metavar="NAME", shell_complete=candidates.services)
@click.argument("replicas", metavar="N|MIN:MAX", callback=replicas_range)
@host_command
def scale(call: CommandContext, service: str, replicas: tuple[int, int]) -> None:
    """Say how many replicas a service has.

    So many, or between two numbers, by what is asked of it.
    """
    body = {"replicas_min": replicas[0], "replicas_max": replicas[1]}
    view = call.http.post(f"{_path(service)}/scale", body, repeat=True)
    call.answer(view, f"{service}: {_between(view)} replicas, {view['target']} now")


@click.command(name="rollback")
@click.argument("service", metavar="NAME", shell_complete=candidates.services)
@host_command
def rollback(call: CommandContext, service: str) -> None:
    """Give up a rollout, or go back to what served before."""
    # Twice is there and back again: what may have been lost is not asked again.
    view = call.http.post(f"{_path(service)}/rollback")
    goal = view["rollout"]["to"] if view["rollout"] else view["revision"]
    call.answer(view, f"{service}: revision {goal}" + (" is on its way" if view["rollout"] else " serves on"))


def _list(call: CommandContext) -> None:
    answer = call.http.get("/api/services")
    if call.json:
        call.document(answer)
        return
    found = answer["services"]
    rows = [
        [
            each["name"],
            coloured(each["state"].replace("_", " ")),
            f"{each['ready']}/{each['target']}",
            _between(each),
            each["revision"],
            _work(each),
            each["problem"] or "-",
        ]
        for each in found
    ]
    table(
        ["NAME", "STATE", "READY", "REPLICAS", "REVISION", "RUNS", "WHY"],
        rows,
        "no services; one is made by: actorgrid serve NAME --replicas 1:4 -- CMD",
        spare=("RUNS", "WHY"),
    )
    if answer.get("url"):
        say(f"\nOpenAI's clients: {answer['url']}, with the service's name as the model")


def _show(call: CommandContext, name: str) -> None:
    view = call.http.get(_path(name))
    if call.json:
        call.document(view)
        return
    rollout = view["rollout"]
    rows = [
        ["state", view["state"].replace("_", " ")],
        ["replicas", f"{view['ready']} of {view['target']} answer ({_between(view)})"],
        ["revision", view["revision"] + (f", going over to {rollout['to']}" if rollout else "")],
        ["runs", _work(view)],
        ["user", view["user_id"]],
    ]
    if view["route"] != "prefix_cost":
        rows.append(["route", view["route"]])
    if view["adapters"]:
        rows.append(["adapters", ", ".join(each["model"] for each in view["adapters"])])
    if view["fallbacks"]:
        rows.append(["fallbacks", ", ".join(view["fallbacks"])])
    if rollout and rollout["canary"]:
        rows.append(["canary", f"{rollout['canary']} % for {rollout['canary_s']:g} s"])
    if view["problem"]:
        rows.append(["why", view["problem"]])
    if view["last_rollout"]:
        rows.append(["last rollout", view["last_rollout"]])
    table(["", name], rows, "")
    now, names = time.time(), hostnames(call)
    say("")
    table(
        ["REPLICA", "STATE", "FOR", "HOST", "PORT", "REVISION", "WHY"],
        [
            [
                each["job_id"],
                coloured(each["state"]),
                span(max(0.0, now - each["since"])),
                names.get(each["host"], each["host"]) or "-",
                str(each["port"] or "-"),
                each["revision"],
                each["reason"] or "-",
            ]
            for each in view["replicas"]
        ],
        "no replicas",
        spare=("WHY",),
    )
    say("")
    table(
        ["REVISION", "NUMBER", "OUTCOME", "RUNS", "WHY"],
        [
            [each["revision"], str(each["number"]), each["outcome"] or "-", _command(each), _fault(each)]
            for each in reversed(view["revisions"])
        ],
        "",
        spare=("WHY", "RUNS"),
    )


def _remove(call: CommandContext, names: tuple[str, ...], now: bool) -> None:
    gone = [call.http.delete(_path(name) + ("?now=true" if now else ""), patient=False) for name in names]
    if call.json:
        call.document({"removed": gone})
        return
    for each in gone:
        count = len(each["ending"])
        say(f"{each['name']} is removed" + (f"; {count} replica{'s' * (count > 1)} end" if count else ""))


def _path(name: str) -> str:
    from actorgrid.client.http import segment

    return f"/api/services/{segment(name)}"


def _between(view: dict[str, Any]) -> str:
    least, most = view["replicas_min"], view["replicas_max"]
    return str(least) if least == most else f"{least}:{most}"


def _work(view: dict[str, Any]) -> str:
    serving = next(each for each in view["revisions"] if each["revision"] == view["revision"])
    return _command(serving)


def _command(revision: dict[str, Any]) -> str:
    job = revision["job"]
    return " ".join(job.get("command") or [job.get("name") or job["kind"]])


def _fault(revision: dict[str, Any]) -> str:
    if revision["reason"]:
        return str(revision["reason"])
    return f"{revision['failures']} ended: {revision['failed_with']}" if revision["failures"] else "-"
