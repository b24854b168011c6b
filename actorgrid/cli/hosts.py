"""``status``, ``hosts`` and ``gpus``: what there is and how it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from actorgrid.errors import NotAllowed, NotFound

from .call import CommandContext, host_command, host_options
from .gpu_totals import total
from .host_names import hostnames
from .mig import mig
from .partitions import partitions
from .quota import QuotaCommands
from .show import ago, clock, coloured, last_known, number, say_folded, share, size, table
from .watching import keep_showing, watch_option


@click.command()
@click.option("--strict", is_flag=True, help="Exit with 1 when the cluster is degraded, too.")
@host_command
def status(call: CommandContext, strict: bool) -> int:
    """One screen: health, GPUs, jobs.

    Of the cluster as the host that answers knows it. Exits with 0 while work is accepted there (healthy, degraded),
    else with 1: not_ready, stalled, electing, no_quorum.
    """
    summary = call.http.get("/api/cluster")
    ready = bool(summary.get("ready", True))
    health = str(summary.get("health", "unknown"))
    code = 0 if ready and (health == "healthy" or not strict) else 1
    if call.json:
        call.document({**summary, "url": call.http.url})
        return code
    name = summary.get("name", "actorgrid")
    say_folded(f"{click.style(name, bold=True)} at {call.http.url}: {coloured(health)}{'' if ready else ', not ready'}")
    last_known(summary, err=False)
    for finding in summary.get("findings") or [{"what": text} for text in summary.get("problems", [])]:
        _finding(finding)
    say_folded(f"  hosts  {_part(summary.get('hosts_present'), summary.get('hosts', 0))}")
    for line in _site_lines(summary.get("sites", {})):
        say_folded(line)
    say_folded(f"  gpus   {_gpus_line(summary)}")
    if limits := _limits_line(summary):
        say_folded(f"  limits {limits}")
    if apart := apart_line(summary.get("isolation") or {}):
        say_folded(f"  apart  {apart}")
    jobs = {state: count for state, count in summary.get("jobs", {}).items() if isinstance(count, int) and count}
    say_folded("  jobs   " + (", ".join(f"{count} {coloured(state)}" for state, count in jobs.items()) or "none yet"))
    binding = summary.get("binding")
    if binding:
        say_folded(f"  short  {binding['text']}" + (f"; {binding['idle_gpus']}" if binding.get("idle_gpus") else ""))
    figures = _performance_line(summary.get("performance", {}))
    if figures:
        say_folded(f"  speed  {figures}")
    if summary.get("ca_fingerprint"):
        say_folded(f"  known  by {summary['ca_fingerprint']}")
    if not ready:
        say_folded("  next   actorgrid doctor")
    elif not jobs:
        say_folded("  next   actorgrid run --gpus 0.25 -- env")
    return code


def _finding(finding: dict[str, Any]) -> None:
    """The lines on one problem: what is wrong, since when, and what to do."""
    word = "note" if finding.get("level") == "note" else "problem"
    since = f" (since {clock(finding['since'])})" if finding.get("since") else ""
    say_folded(f"  {word}: {finding['what']}{since}")
    if finding.get("found"):
        say_folded(f"    found: {finding['found']}")
    if finding.get("try"):
        say_folded(f"    try: {finding['try']}")


def _part(present: int | None, count: int) -> str:
    """The number present of a whole; the whole alone when all are."""
    return str(count) if present is None or present == count else f"{present} of {count}"


def _site_lines(sites: dict[str, dict[str, int]]) -> list[str]:
    """A line for each site: its hosts, and how many of them vote."""
    return [
        f"  site   {name or '(none said)'}: {_part(each['present'], each['hosts'])}"
        f" host{'' if each['hosts'] == 1 else 's'}, {each['voters'] or 'none'} of them voting"
        for name, each in sorted(sites.items())
    ]


def _gpus_line(summary: dict[str, Any]) -> str:
    count = summary.get("gpus", 0)
    if not count:
        return "none"
    present = summary.get("gpus_present")
    away = "" if present is None or present == count else f", {count - present} away"
    models = ", ".join(summary.get("gpu_models", []))
    used, total = summary.get("gpu_allocated_milli", 0), summary.get("gpu_capacity_milli", 1000 * count)
    simulated = "\n         simulated: placement is real, the devices are not"
    note = simulated if summary.get("gpu_sources") == ["simulated"] else ""
    return f"{_part(present, count)} x {models}{away}, {share(used)} of {share(total)} allocated{note}"


def _limits_line(summary: dict[str, Any]) -> str:
    """Who would hold a share of a GPU to what it has, and of how many; nothing where all GPUs are simulated."""
    if not summary.get("gpus") or summary.get("gpu_sources") in (["simulated"], ["declared"]):
        return ""
    limits: dict[str, dict[str, int]] = summary.get("gpu_limits") or {}
    words = {"none": "counted alone", "cooperative": "ended when it has more", "driver": "driver", "kernel": "kernel"}
    parts = [
        f"{name.removeprefix('gpu_')}: "
        + ", ".join(f"{words.get(who, who)} ({count})" for who, count in sorted(counts.items()))
        for name, counts in limits.items()
        if counts
    ]
    return f"of shares, {'; '.join(parts)}" if parts else ""


def apart_line(counts: dict[str, dict[str, int]]) -> str:
    """Who would enforce what for work that asks for the most its host has; on how many hosts, where they differ."""
    words: dict[str, list[str]] = {}
    for name, of_aspect in counts.items():
        for who, count in of_aspect.items():
            words.setdefault(who, []).append(name if len(of_aspect) == 1 else f"{name} ({count})")
    return "; ".join(f"{who}: {', '.join(names)}" for who, names in words.items())


def _performance_line(figures: dict[str, Any]) -> str:
    parts = []
    if figures.get("scheduling_latency_us") is not None:
        parts.append(f"placement {figures['scheduling_latency_us']:.0f} us")
    if figures.get("commit_latency_ms") is not None:
        parts.append(f"commit {figures['commit_latency_ms']:.2f} ms")
    if figures.get("cluster_throughput_tasks_per_second", 0) >= 0.05:
        parts.append(f"{figures['cluster_throughput_tasks_per_second']:.1f} jobs/s")
    return ", ".join(parts)


@click.command()
@click.option("--load", is_flag=True, help="How loaded each is, was, and is expected to be.")
@watch_option
@host_command
def hosts(call: CommandContext, load: bool, watch: float | None) -> None:
    """List the hosts.

    With --load: what each had to do, as the host that answers heard of it. A load of 1 is one CPU's work; EXPECTED is
    what is to be expected now, A MINUTE how the load went, oldest first.
    """
    show = _loads if load else _hosts
    keep_showing(lambda: show(call), watch, call.json)


def _hosts(call: CommandContext) -> None:
    answer = call.http.get("/api/hosts")
    if call.json:
        call.document({**answer, "paths": _paths(call)})
        return
    last_known(answer)
    sites = any(host.get("site") for host in answer["hosts"])
    rows = [
        [
            str(host["hostname"]),
            _health(host) + (", draining" if host.get("draining") else ""),
            "-" if host.get("node") is None else str(host["node"]),
            str(host.get("raft_role", "-")),
            *([host.get("site") or "-"] if sites else []),
            f"{host['ip_address']}:{host['port']}",
            str(len(host.get("gpus", []))),
            f"{share(host.get('cpu_milli_allocated', 0))}/{share(host['cpu_milli'])}",
            f"{size(host.get('memory_mib_allocated', 0) << 20)}/{size(host['memory_mib'] << 20)}",
            str(host["incarnation"]),
            _problems(host.get("problems", [])),
        ]
        for host in answer["hosts"]
    ]
    where = ["SITE"] if sites else []
    table(
        ["HOST", "HEALTH", "NODE>", "ROLE", *where, "ADDRESS", "GPUS>", "CPUS>", "MEMORY>", "STARTS>", "PROBLEMS"],
        rows,
        "no hosts",
        ["STARTS>", "ROLE", "NODE>", *where, "MEMORY>", "ADDRESS", "CPUS>"],
    )


def _paths(call: CommandContext) -> dict[str, Any] | None:
    """By which paths large things come to the host that answers; ``None`` for who may not look into servers."""
    try:
        found: dict[str, Any] = call.http.get("/api/paths")
    except (NotAllowed, NotFound):  # a host of the version before has no such route
        return None
    return found


BARS = "▁▂▃▄▅▆▇█"
BARS_S, BARS_SHOWN = 60.0, 12


def _loads(call: CommandContext) -> None:
    answer = call.http.get("/api/load")
    if call.json:
        call.document(answer)
        return
    rows = []
    for host in answer["hosts"]:
        reading = host["reading"] or {}
        busy = [reading.get("attempts"), reading.get("leases"), reading.get("waiting")]
        rows.append(
            [
                str(host["hostname"]),
                str(host["state"]),
                "-" if host["age_s"] is None else f"{host['age_s']:.0f} s",
                _load(host["load"]),
                _load(host["expected"]),
                _bars(host["history"], reading.get("cpus", 1)),
                _percent(reading.get("cpu")),
                _percent(reading.get("memory")),
                _percent(reading.get("gpu")),
                *("-" if count is None else str(count) for count in busy),
            ]
        )
    columns = ["HOST", "STATE", "AGE>", "LOAD>", "EXPECTED>", "A MINUTE", "CPU>", "MEMORY>", "GPU>", "ATTEMPTS>"]
    spare = ["WAITING>", "LEASES>", "ATTEMPTS>", "AGE>", "A MINUTE", "GPU>", "MEMORY>", "CPU>"]
    table([*columns, "LEASES>", "WAITING>"], rows, "no hosts", spare)


def _load(load: float | None) -> str:
    return "-" if load is None else f"{load:.2f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f} %"


def _bars(history: list[dict[str, Any]], cpus: int) -> str:
    """The load of the last minute in bars, the oldest first; a full one is as much as there are CPUs, or more."""
    steps: dict[int, float] = {}
    for sample in history:
        step = int(sample["age_s"] / (BARS_S / BARS_SHOWN))
        if step < BARS_SHOWN:
            steps[step] = max(steps.get(step, 0.0), sample["load"])
    shares = (min(1.0, steps[step] / cpus) if step in steps else None for step in reversed(range(BARS_SHOWN)))
    return "".join(" " if share is None else BARS[round(share * (len(BARS) - 1))] for share in shares)


def _health(host: dict[str, Any]) -> str:
    """The health of a host in a word; for an absent one, also for how long it was not heard of."""
    heard = host.get("last_heartbeat")
    if host.get("presence", "present") == "present" or not heard:
        return str(host["health"])
    return f"{host['health']} for {ago(heard)}"


def _problems(problems: list[str]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return problems[0] + more if problems else "-"


TROUBLED = ("degraded", "failed", "lost")
GPUS_SPARE = ["POWER>", "TEMP>", "USE>", "MEMORY>", "MODEL"]


@click.group(cls=QuotaCommands, invoke_without_command=True)
@watch_option
@host_options
@click.pass_context
def gpus(ctx: click.Context, watch: float | None) -> None:
    """List the GPUs and what holds them.

    Below the table is why one takes nothing new, or is not as it should be.
    """
    if ctx.invoked_subcommand is None:
        call = ctx.ensure_object(CommandContext)
        keep_showing(lambda: _gpus(call), watch, call.json)


gpus.add_command(mig)
gpus.add_command(partitions)
gpus.add_command(total)


def _gpus(call: CommandContext) -> None:
    answer = call.http.get("/api/gpus")
    if call.json:
        call.document(answer)
        return
    names = hostnames(call)
    last_known(answer)
    rows = [
        [
            str(names.get(gpu["host"], gpu["host"])),
            str(gpu["index"]),
            str(gpu["model"]),
            _device_status(gpu),
            share(gpu.get("allocated_milli", 0)),
            _of(gpu.get("memory_allocated_bytes", 0), gpu["memory_total_bytes"]),
            number(gpu.get("utilization_percent"), "%"),
            number(gpu.get("temperature_celsius"), "C"),
            number(gpu.get("power_usage_watts"), "W"),
            " ".join(str(job)[:8] for job in gpu.get("jobs", [])) or "-",
        ]
        for gpu in answer["gpus"]
    ]
    columns = ["HOST", "GPU>", "MODEL", "STATUS", "SHARE>", "MEMORY>", "USE>", "TEMP>", "POWER>", "JOBS"]
    table(columns, rows, "no GPUs: actorgrid up --gpus 8xH100-80GB simulates some", GPUS_SPARE)
    for gpu in answer["gpus"]:
        why = gpu.get("unfit") or (gpu.get("health_reason") if gpu.get("health") in TROUBLED else None)
        if why and gpu.get("presence", "present") == "present":
            say_folded(f"  {names.get(gpu['host'], gpu['host'])} GPU {gpu['index']}: {why}")
    counts = Counter(sorted(str(gpu["source"]) for gpu in answer["gpus"]))
    if set(counts) - {"probed"}:
        say_folded("(" + ", ".join(f"{count} {source}" for source, count in counts.items()) + ")")


def _device_status(gpu: dict[str, Any]) -> str:
    """The status of a device; of one whose host is absent only that is known."""
    if gpu.get("presence", "present") != "present":
        return f"host {gpu['presence']}"
    if gpu.get("health") in TROUBLED and gpu.get("source") == "probed":
        return f"{gpu['status']} ({gpu['health']})"
    return str(gpu["status"]) + (" (unfit)" if gpu.get("unfit") else "")


def _of(part_bytes: int, total_bytes: int) -> str:
    """A part of a whole as text, the unit once where it is the same: ``20/80 GiB``."""
    part, total = size(part_bytes), size(total_bytes)
    same = part.split()[-1] == total.split()[-1] or not part_bytes
    return f"{part.split()[0]}/{total}" if same else f"{part}/{total}"
