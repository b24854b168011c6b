"""``timeline``: what ran on a device and when, from files of PyTorch's profiler; for people, and for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from actorgrid.errors import BadRequest

from .call import CommandContext, json_option, pass_call
from .printing import say
from .show import table

if TYPE_CHECKING:
    from actorgrid.kernel_timeline.kernel_events import KernelTimeline

FILES_MAX = 256
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def command() -> None:
    """Show timelines of kernels, write them for Perfetto."""


@command.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--top", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many names to list.")
@json_option
@pass_call
def show(call: CommandContext, /, files: Sequence[Path], top: int) -> None:
    """Sum up FILES by name: what took how long on the device and beside it."""
    from actorgrid.kernel_timeline.kernel_events import device_busy, totals

    timelines = _read(files)
    busy, rows = device_busy(timelines), totals(timelines)
    dropped = sum(timeline.dropped for timeline in timelines)
    if call.json:
        call.document({"devices": busy, "totals": rows[:top], "names": len(rows), "dropped": dropped})
        return
    table(
        ("NAME", "KIND", "COUNT>", "TOTAL>", "MEDIAN>", "MAX>"),
        [
            [
                row["name"],
                row["kind"],
                str(row["count"]),
                *map(_time, (row["total_ns"], row["median_ns"], row["max_ns"])),
            ]
            for row in rows[:top]
        ],
        "nothing is in it that took time",
        spare=("NAME",),
    )
    if len(rows) > top:
        say(f"and {len(rows) - top} other names (--top)")
    for each in busy:
        share = 100 * each["busy_ns"] / each["span_ns"] if each["span_ns"] else 100.0
        say(f"{each['source']}: GPU {each['device']} busy {share:.1f} % of {_time(each['span_ns'])}")
    if dropped:
        say(f"{dropped} events have no time that makes sense, and are left out", err=True)


@command.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--out", required=True, type=FILE, metavar="FILE", help="The trace to write; open it in ui.perfetto.dev.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@json_option
@pass_call
def export(call: CommandContext, /, files: Sequence[Path], out: Path, force: bool) -> None:
    """Write FILES, of several processes or hosts, as one trace for Perfetto, on one axis of time."""
    from actorgrid.kernel_timeline.perfetto_export import perfetto_json

    timelines = _read(files)
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.writelines(perfetto_json(timelines))
    except FileExistsError as error:
        raise BadRequest(f"{out} is there already", asked=str(out), hint="--force writes over it") from error
    except OSError as error:
        raise BadRequest("the trace cannot be written", asked=str(out), found=str(error)) from error
    count = sum(len(timeline.events) for timeline in timelines)
    dropped = sum(timeline.dropped for timeline in timelines)
    call.answer({"file": str(out), "events": count, "dropped": dropped}, f"{out}: {count} events")


def _read(files: Sequence[Path]) -> list[KernelTimeline]:
    from actorgrid.kernel_timeline.kineto import read_kineto

    if len(files) > FILES_MAX:
        raise BadRequest("too many files at once", asked=f"{len(files)}", found=f"at most {FILES_MAX}")
    return [read_kineto(path) for path in files]


def _time(nanoseconds: int) -> str:
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3f} {unit}"
    return f"{nanoseconds} ns"
