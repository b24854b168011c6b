"""``usage``: what work has held and used, by user, job, device or label; what served models used, by key or model."""

from __future__ import annotations

import csv
import sys
from typing import Any

import click

from .call import CommandContext, host_command
from .printing import visible
from .show import clock, say_folded, size, table
from .times import seconds_above_zero
from .used import energy, gpu_time, memory_time

COLUMNS = ["GPU TIME>", "SIMULATED>", "GPU MEMORY>", "MOST>", "ENERGY>", "CORE TIME>", "CPU TIME>", "WORKS>"]
SPARE = ["SIMULATED>", "CORE TIME>", "MOST>"]
MODEL_COLUMNS = ["USER", "REQUESTS>", "BROKEN OFF>", "PROMPT>", "CACHED>", "ANSWER>", "ESTIMATED>"]
MODEL_SPARE = ["ESTIMATED>", "BROKEN OFF>", "USER"]
OF_MODELS_ALONE = ("key", "service")
CSV_COLUMNS = (
    "works", "running", "held_s", "gpu_s", "simulated_gpu_s", "memory_mib_s", "memory_of_gpu_s", "memory_high_mib",
    "energy_j", "energy_of_gpu_s", "energy_estimated_s", "unsampled_s", "core_s", "cpu_s", "max_rss_bytes",
    "incomplete",
)  # fmt: skip
"""Of each table of comma-separated values, whatever rows there are; what a later version of a host tells comes last."""
CSV_MODEL_COLUMNS = (
    "name", "user", "requests", "aborted", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated_tokens",
)  # fmt: skip


@click.command()
@click.option("--by", metavar="WHAT", help="user, tenant, job, gpu, model, host, kind, label, label:KEY. [user]")
@click.option(
    "--models", is_flag=True, help="What served models used, by model, key, user, tenant, service, host. [model]"
)
@click.option("--since", callback=seconds_above_zero, metavar="TIME", help="Of the last 30m, 2h, 7d; else since ever.")
@click.option("--user", default="", help="Of this user alone.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated, with a header; all figures in their plain units.")
@host_command
def command(
    call: CommandContext, /, by: str | None, models: bool, since: float | None, user: str, as_csv: bool
) -> None:
    """What work has used: GPU-seconds, device memory, energy, CPU.

    Of jobs and sessions, of attempts that failed and of what still runs. A second of half a GPU is half a GPU-second.
    "-" is not known, never nothing: with --json each row tells for how many of its GPU-seconds a sum is known.

    Served models (--models, and --by key or service): requests and tokens by whole hours, of streams that were broken
    off too.
    """
    if as_csv and call.json:
        raise click.UsageError("one of --json and --csv")
    if models or by in OF_MODELS_ALONE:
        _models(call, by or "model", since, user, as_csv)
        return
    by = by or "user"
    answer = call.http.get("/api/usage", by=by, since_s=since, user=user or None, timeout_s=30.0)
    if call.json:
        call.document(answer)
        return
    if as_csv:
        _write_csv(answer["rows"], by, CSV_COLUMNS)
    else:
        rows = [_cells(row) for row in answer["rows"]]
        table([by.partition(":")[2].upper() or by.upper(), *COLUMNS], rows, "nothing was used in that time", SPARE)
    if answer["missing_hosts"]:
        say_folded(f"not counted, as they did not answer: {', '.join(answer['missing_hosts'])}", err=True)
    if answer["kept_since"] and by not in ("user", "tenant"):
        say_folded(f"work that ended before {clock(answer['kept_since'])} is only known by user", err=True)


def _models(call: CommandContext, by: str, since: float | None, user: str, as_csv: bool) -> None:
    """Show what served models used."""
    answer = call.http.get("/api/usage/models", by=by, since_s=since, user=user or None, timeout_s=30.0)
    if call.json:
        call.document(answer)
        return
    if as_csv:
        _write_csv(answer["rows"], by, CSV_MODEL_COLUMNS)
    else:
        rows = [
            [
                (f"{row['key']} ({row['name']})" if row["name"] else row["key"]) or "(none)",
                row["user"] or "-",
                *(f"{row[name]:,}" for name in ("requests", "aborted", "prompt_tokens")),
                *(f"{row[name]:,}" for name in ("cached_tokens", "completion_tokens", "estimated_tokens")),
            ]
            for row in answer["rows"]
        ]
        table([by.upper(), *MODEL_COLUMNS], rows, "no model was asked in that time", MODEL_SPARE)
    if answer["missing_hosts"]:
        say_folded(f"not counted, as they did not answer: {', '.join(answer['missing_hosts'])}", err=True)
    if answer["kept_since"]:
        say_folded(f"what was used before {clock(answer['kept_since'])} is not known any more", err=True)


def _cells(row: dict[str, Any]) -> list[str]:
    most = row["memory_high_mib"]
    return [
        row["key"] or "(none)",
        gpu_time(row["gpu_s"]),
        gpu_time(row["simulated_gpu_s"]) if row["simulated_gpu_s"] else "",
        _known(memory_time(row["memory_mib_s"]), row["memory_of_gpu_s"], row["gpu_s"]),
        size(None if most is None else most << 20),
        _known(energy(row["energy_j"]), row["energy_of_gpu_s"], row["gpu_s"]),
        gpu_time(row["core_s"]),
        "-" if row["cpu_s"] is None else gpu_time(row["cpu_s"]),
        f"{row['works']}" + (f" ({row['running']} running)" if row["running"] else ""),
    ]


def _known(text: str, of_gpu_s: float, gpu_s: float) -> str:
    """A sum, and of which part of the GPU-seconds it is where that is not all."""
    if text == "-" or of_gpu_s >= 0.995 * gpu_s:
        return text
    return f"{text} ({100 * of_gpu_s / gpu_s:.0f} %)"


def _write_csv(rows: list[dict[str, Any]], by: str, columns: tuple[str, ...]) -> None:
    told = (name for name in (rows[0] if rows else {}) if name not in ("key", "models"))
    names = list(dict.fromkeys((*columns, *told)))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([by, *names])
    for row in rows:
        values = (row.get(name) for name in names)  # a host of an earlier version may tell less
        cells = (_spoken(value) if isinstance(value, str) else value for value in values)
        writer.writerow([_spoken(row["key"]), *("" if cell is None else cell for cell in cells)])


def _spoken(key: str) -> str:
    """A key that no spreadsheet takes for a formula."""
    shown = visible(key, cell=True)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown
