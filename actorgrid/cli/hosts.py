"""``status``, ``hosts`` and ``gpus``: what there is and how it is."""

from __future__ import annotations

from typing import Any

import click

from .call import Call, host_options, pass_call
from .show import coloured, number, share, size, table


@click.command()
@host_options
@pass_call
def status(call: Call) -> int:
    """One screen: health, GPUs, jobs.

    Exits with 0 when the host is ready, 1 when it answers but is not.
    """
    summary = call.http.get("/api/cluster")
    ready = bool(summary.get("ready", True))
    if call.json:
        call.document({**summary, "url": call.http.url})
        return 0 if ready else 1
    name = summary.get("name", "actorgrid")
    health = str(summary.get("health", "unknown"))
    click.echo(f"{click.style(name, bold=True)} at {call.http.url}: {coloured(health)}{'' if ready else ', not ready'}")
    for problem in summary.get("problems", []):
        click.echo(f"  problem: {problem}")
    click.echo(f"  hosts  {summary.get('hosts', 0)}")
    click.echo(f"  gpus   {_gpus_line(summary)}")
    jobs = {state: count for state, count in summary.get("jobs", {}).items() if isinstance(count, int) and count}
    click.echo("  jobs   " + (", ".join(f"{count} {coloured(state)}" for state, count in jobs.items()) or "none yet"))
    figures = _performance_line(summary.get("performance", {}))
    if figures:
        click.echo(f"  speed  {figures}")
    if summary.get("ca_fingerprint"):
        click.echo(f"  known  by {summary['ca_fingerprint']}")
    if not ready:
        click.echo("  next   actorgrid doctor")
    elif not jobs:
        click.echo("  next   actorgrid run --gpus 0.25 -- env")
    return 0 if ready else 1


def _gpus_line(summary: dict[str, Any]) -> str:
    count = summary.get("gpus", 0)
    if not count:
        return "none"
    models = ", ".join(summary.get("gpu_models", []))
    used, total = summary.get("gpu_allocated_milli", 0), summary.get("gpu_capacity_milli", 1000 * count)
    simulated = "\n         simulated: placement is real, the devices are not"
    note = simulated if summary.get("gpu_sources") == ["simulated"] else ""
    return f"{count} x {models}, {share(used)} of {share(total)} allocated{note}"


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
@host_options
@pass_call
def hosts(call: Call) -> None:
    """List the hosts."""
    answer = call.http.get("/api/hosts")
    if call.json:
        call.document(answer)
        return
    rows = [
        [
            str(host["hostname"]),
            str(host["health"]) + (", draining" if host.get("draining") else ""),
            "-" if host.get("node") is None else str(host["node"]),
            str(host.get("raft_role", "-")),
            f"{host['ip_address']}:{host['port']}",
            str(len(host.get("gpus", []))),
            f"{share(host.get('cpu_milli_allocated', 0))}/{share(host['cpu_milli'])}",
            f"{size(host.get('memory_mib_allocated', 0) << 20)}/{size(host['memory_mib'] << 20)}",
            str(host["incarnation"]),
            _problems(host.get("problems", [])),
        ]
        for host in answer["hosts"]
    ]
    table(
        ["HOST", "HEALTH", "NODE>", "ROLE", "ADDRESS", "GPUS>", "CPUS>", "MEMORY>", "STARTS>", "PROBLEMS"],
        rows,
        "no hosts",
    )


def _problems(problems: list[str]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return problems[0] + more if problems else "-"


@click.command()
@host_options
@pass_call
def gpus(call: Call) -> None:
    """List the GPUs and what holds them."""
    answer = call.http.get("/api/gpus")
    if call.json:
        call.document(answer)
        return
    names = {host["node_id"]: host["hostname"] for host in call.http.get("/api/hosts")["hosts"]}
    rows = [
        [
            str(names.get(gpu["host"], gpu["host"])),
            str(gpu["index"]),
            str(gpu["model"]),
            str(gpu["status"]) + (" (unfit)" if gpu.get("unfit") else ""),
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
    table(columns, rows, "no GPUs: actorgrid up --gpus 8xH100-80GB simulates some")
    counts = {source: 0 for source in sorted({str(gpu["source"]) for gpu in answer["gpus"]})}
    for gpu in answer["gpus"]:
        counts[str(gpu["source"])] += 1
    if set(counts) - {"probed"}:
        click.echo("(" + ", ".join(f"{count} {source}" for source, count in counts.items()) + ")")


def _of(part_bytes: int, total_bytes: int) -> str:
    """A part of a whole, the unit once where it is the same: ``20/80 GiB``."""
    part, total = size(part_bytes), size(total_bytes)
    same = part.split()[-1] == total.split()[-1] or not part_bytes
    return f"{part.split()[0]}/{total}" if same else f"{part}/{total}"
