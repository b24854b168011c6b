"""``restart`` and ``upgrade``: start agents anew, one host after the other, while their work goes on."""

from __future__ import annotations

import time
from typing import Any

import click

from actorgrid.errors import ActorError, CallTimeout, HostUnreachable, WrongState

from . import candidates
from .call import CommandContext, host_command
from .host_names import Host, find_host, title
from .show import progress, span
from .times import seconds

LOOK_S = 0.2
WITHIN = "2m"


@click.command()
@click.argument("host", metavar="[HOST]", required=False, shell_complete=candidates.hosts)
@click.option("--timeout", "within_s", default=WITHIN, show_default=True, callback=seconds, help="For it to be back.")
@host_command
def restart(call: CommandContext, host: str | None, within_s: float) -> None:
    """Start a host's agent anew; its work goes on.

    The agent of HOST, else of the host that answers, with the code that is installed there now. What runs is adopted
    when it is back. HOST is a number, name or address of actorgrid hosts.
    """
    hosts = _hosts(call)
    meant = find_host(hosts, host) if host else _here(call, hosts)
    with progress(call.json, steps=True) as report:
        report(f"host {title(meant)}", 0.0, 1.0)
        back = _restart(call, meant, within_s)
    call.answer(back, f"host {title(meant)} is back after {span(back['seconds'])}")


@click.command()
@click.option("--rolling", is_flag=True, help="One host after the other; the only way there is.")
@click.option("--hosts", "named", metavar="HOST[,HOST]", help="Only these, in this order.")
@click.option("--timeout", "within_s", default=WITHIN, show_default=True, callback=seconds, help="For each to be back.")
@host_command
def upgrade(call: CommandContext, rolling: bool, named: str | None, within_s: float) -> None:
    """Start all agents anew, one after the other, on what is installed now.

    Install the new version on the hosts first. Work goes on meanwhile, and jobs are taken. The host that leads comes
    last, and hands over before. It stops at the first host that does not come back; with --json, a line for each step.
    """
    if not rolling:
        raise click.UsageError("say --rolling: hosts are restarted one after the other")
    hosts = _hosts(call)
    if named:
        order = [find_host(hosts, text.strip()) for text in named.split(",") if text.strip()]
    else:
        order = sorted(hosts, key=lambda host: (host["raft_role"] == "leader", host.get("node") or 0))
    _refuse_while_hosts_are_missing(hosts)
    began = time.monotonic()
    with progress(call.json, steps=True) as report:
        for number, host in enumerate(order):
            report(f"host {title(host)}", float(number), float(len(order)))
            if call.json:
                call.document({"event": "restarting", "host_id": host["node_id"], "hostname": host["hostname"]})
            back = _restart(call, host, within_s)
            if call.json:
                call.document({"event": "back", **back})
            else:
                report(f"host {title(host)} is back after {span(back['seconds'])}", number + 1.0, float(len(order)))
    call.answer(
        {"event": "done", "hosts": len(order), "seconds": round(time.monotonic() - began, 3)},
        f"{len(order)} host(s) restarted in {span(time.monotonic() - began)}",
    )


def _hosts(call: CommandContext) -> list[Host]:
    hosts: list[Host] = call.http.get("/api/hosts")["hosts"]
    return [host for host in hosts if host["raft_role"] != "none"]


def _here(call: CommandContext, hosts: list[Host]) -> Host:
    here = call.http.get("/api/members")["here"]
    return find_host(hosts, here)


def _refuse_while_hosts_are_missing(hosts: list[Host]) -> None:
    """Refuse while hosts are away, as one more could be one too many. Raises WrongState."""
    away = [host for host in hosts if host["health"] == "unreachable"]
    if away:
        raise WrongState(
            "not all hosts are there",
            asked="to restart one after the other",
            found="unreachable: " + ", ".join(title(host) for host in away),
            hint="start them, or remove those that will not come back; then try again",
        )


def _restart(call: CommandContext, host: Host, within_s: float) -> dict[str, Any]:
    """Restart it and wait until it is back: as the same member, with what the ledger has, heard of by the leader."""
    from actorgrid.client.http import segment

    began = time.monotonic()
    answer = call.http.post(f"/api/hosts/{segment(host['node_id'])}/restart", {})
    found = "it does not answer"
    while time.monotonic() - began < within_s:
        time.sleep(LOOK_S)
        try:
            hosts = {each["node_id"]: each for each in call.http.get("/api/hosts")["hosts"]}
        except (HostUnreachable, ActorError) as error:  # it is the host that we speak to
            found = error.message
            continue
        now = hosts.get(host["node_id"])
        if now is None:
            found = "it is no host of the cluster any more"
        elif now["incarnation"] <= answer["incarnation"]:
            found = "it has not started again yet"
        elif now["health"] == "unreachable" or any(each["raft_role"] == "leader" for each in hosts.values()) is False:
            found = "it started, and is not heard of by a leader"
        elif _rank(now["raft_role"]) < _rank(host["raft_role"]):
            found = f"it was {host['raft_role']} and is {now['raft_role']}"
        else:
            return {
                "host_id": host["node_id"],
                "hostname": host["hostname"],
                "incarnation": now["incarnation"],
                "seconds": round(time.monotonic() - began, 3),
            }
    raise CallTimeout(
        f"host {title(host)} did not come back",
        asked=f"within {span(within_s)}",
        found=found,
        hint="no further host was touched. See agent.log there; if the new version does not start, install"
        " the old one again and start it with actorgrid up: what ran there is adopted or started elsewhere",
    )


def _rank(role: str) -> int:
    """The rank of a role. A leader that was restarted comes back as a voter, so both count the same."""
    return {"leader": 2, "voter": 2, "learner": 1}.get(role, 0)
