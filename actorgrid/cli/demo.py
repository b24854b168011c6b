"""``demo``: a real host, a real job of dependent steps, a picture of the work and one of how it was done."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from actorgrid.demo.report import FrameStep, shortage, summary
from actorgrid.demo.tiles import plan
from actorgrid.demo.work import (
    ASKED,
    SIZES,
    TILE_OPTIONS,
    Submitted,
    capacity_of,
    check_pictures,
    check_pictures_can_be_made,
    check_shares,
    result_of,
    steps_of,
    submit,
)
from actorgrid.errors import BadRequest, CallTimeout, DiskFull, StartFailed, StorageError

from .call import CommandContext, json_option, pass_call
from .demo_serve import serve
from .printing import say
from .show import on_terminal, share, table

PATIENCE_S = 600.0
SHOWN_ROWS = 12
COLUMNS = ["STEP", "GPU>", "UUID", "WITH", "PID>", "QUEUED_MS>", "PLACED_US>", "START_MS>", "RUN_MS>"]


@click.group(invoke_without_command=True)
@click.option("--size", type=click.Choice(list(SIZES)), default="normal", show_default=True, help="How much work.")
@click.option("--frames", type=click.IntRange(1, 64), help="Frames of the zoom [by size].")
@click.option("--tiles", type=click.IntRange(1, 256), help="Tiles of each frame [by size].")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out"),
    show_default=True,
    help="Where the pictures go.",
)
@click.option("--keep-up", is_flag=True, help="Leave the host up afterwards, until interrupted.")
@json_option
@pass_call
def command(call: CommandContext, size: str, frames: int | None, tiles: int | None, out: Path, keep_up: bool) -> None:
    """Render a picture on shared GPUs: a tour in a minute.

    Starts a host of its own in a temporary directory, with the machine's GPUs or simulated ones, has a zoom into
    the Mandelbrot set rendered tile by tile and stitched, says where each tile ran, and writes mandelbrot.png and
    timeline.png.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    import actorgrid

    check_pictures_can_be_made()
    _prepare(out)
    frames_by_size, tiles_by_size, columns, rows = SIZES[size]
    tiling = plan(frames or frames_by_size, tiles or tiles_by_size, columns, rows)
    say = _Voice(call.json)
    began = time.monotonic()
    with sigterm_as_interrupt(), actorgrid.LocalCluster(gpus=None) as cluster:
        client = cluster.client()
        gpus = sorted(client.gpus(), key=lambda gpu: gpu["index"])
        if not gpus:
            raise StartFailed("the host has no GPUs to share", hint="actorgrid doctor")
        say.line(f"host up in {time.monotonic() - began:.1f} s at {cluster.url} with {_describe(gpus)}")
        work = submit(client, tiling)
        say.line(
            f"submitted {len(work.all())} jobs: {len(tiling)} frames of {len(tiling[0])} tiles, stitching, a poster"
        )
        _follow(work, say)
        steps = steps_of(client, work, tiling)
        pictures = [frame.result() for frame in work.frames]
        poster = work.poster.result()
        check_pictures(pictures, poster, columns, rows)
        report = summary(steps, len(gpus))
        check_shares(report)
        from actorgrid.demo.timeline import timeline_png

        title = f"actorgrid demo: {report['jobs']} jobs on {_describe(gpus)} in {report['elapsed_s']:.1f} s"
        subtitle = (
            f"a Mandelbrot zoom, {len(tiling)} frames of {len(tiling[0])} tiles,"
            f" {share(round(TILE_OPTIONS['gpus'] * 1000))} GPU and {TILE_OPTIONS['gpu_memory']} each;"
            f" rendered with {', '.join(report['devices'])}"
        )
        lanes = [(gpu["device_id"], gpu["model"]) for gpu in gpus]
        _write(out / "mandelbrot.png", poster.png)
        short = shortage(steps, capacity_of(client, gpus), ASKED)
        _write(out / "timeline.png", timeline_png(steps, lanes, title, subtitle, len(tiling), short))
        report["short"] = short
        report["probed"] = all(gpu["source"] == "probed" for gpu in gpus)
        report["pictures"] = [str(out / "mandelbrot.png"), str(out / "timeline.png")]
        if call.json:
            call.document({"summary": report, "steps": [step.to_dict() for step in steps]})
        else:
            _print(steps, report)
        if keep_up:
            _stay(say, cluster.url, cluster.data_dir)


command.add_command(serve)


def _follow(work: Submitted, say: _Voice) -> None:
    """Wait for all of it, showing how far it is. Raises what the first failed step raised."""
    from concurrent.futures import FIRST_COMPLETED, wait

    pending: set[Future[Any]] = set(work.all())
    frame_of = {id(tile): number for number, frame in enumerate(work.tiles) for tile in frame}
    began = time.monotonic()
    with say.progress([len(frame) for frame in work.tiles]) as progress:
        while pending:
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                result_of(future)
                number = frame_of.get(id(future))
                if number is not None:
                    progress.tile_done(number)
                elif future in work.frames:
                    progress.frame_done(work.frames.index(future))
            if time.monotonic() - began > PATIENCE_S:
                raise CallTimeout(
                    f"{len(pending)} steps are not done after {PATIENCE_S:.0f} s", hint="try --size small"
                )


# -- checks


def _prepare(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadRequest(
            f"cannot write to {out}: {error.strerror}", asked=f"--out {out}", hint="give another directory with --out"
        ) from error


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(f"cannot write {path}: {error.strerror}", hint="give another directory with --out") from error


# -- showing


class _Voice:
    """Speaks to people on stdout; is silent when a program reads it."""

    def __init__(self, silent: bool) -> None:
        self.silent = silent

    def line(self, text: str) -> None:
        if not self.silent:
            say(text)

    def progress(self, sizes: Sequence[int]) -> AbstractContextManager[_Progress]:
        if not self.silent and on_terminal():
            return _bars(sizes)
        return nullcontext(_Progress(sizes, self))


class _Progress:
    """Shows progress as a line for each finished frame."""

    def __init__(self, sizes: Sequence[int], say: _Voice) -> None:
        self._sizes = sizes
        self._say = say
        self._done = 0
        self._total = sum(sizes)
        self._began = time.monotonic()

    def tile_done(self, frame: int) -> None:
        """Count one more tile of a frame."""
        self._done += 1

    def frame_done(self, frame: int) -> None:
        """Note that a frame is stitched."""
        elapsed = time.monotonic() - self._began
        self._say.line(f"frame {frame + 1} stitched; {self._done} of {self._total} tiles done after {elapsed:.1f} s")


class _Bars(_Progress):
    """Shows progress as bars that move."""

    def __init__(self, sizes: Sequence[int], bars: Any) -> None:
        super().__init__(sizes, _Voice(silent=True))
        self._bars = bars
        self._ids = [bars.add_task(f"frame {number + 1}", total=size + 1) for number, size in enumerate(sizes)]

    def tile_done(self, frame: int) -> None:
        """Move the frame's bar."""
        self._bars.advance(self._ids[frame])

    def frame_done(self, frame: int) -> None:
        """Fill the frame's bar."""
        self._bars.advance(self._ids[frame])


@contextmanager
def _bars(sizes: Sequence[int]) -> Iterator[_Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bars:
        yield _Bars(sizes, bars)


def _print(steps: Sequence[FrameStep], report: dict[str, Any]) -> None:
    names = short_uuids({uuid for step in steps for uuid in step.gpu_uuids})
    rows = [
        [
            step.name,
            ",".join(map(str, step.gpu_indexes)) or "-",
            ",".join(names[uuid] for uuid in step.gpu_uuids) or "-",
            step.device,
            str(step.pid),
            f"{step.queued_ms:.1f}",
            "-" if step.placement_us is None else f"{step.placement_us:.1f}",
            f"{step.start_ms:.1f}",
            f"{step.run_ms:.1f}",
        ]
        for step in steps
    ]
    say()
    left_out = len(rows) - SHOWN_ROWS if on_terminal() else 0
    table(COLUMNS, rows[:SHOWN_ROWS] if left_out > 0 else rows, "nothing ran")
    if left_out > 0:  # the whole table would push the start of it all off the screen
        say(f"... and {left_out} more; all of them: actorgrid demo | cat, or --json")
    say()
    say(f"jobs          {report['jobs']} in {report['elapsed_s']:.2f} s, {report['jobs_per_s']:.1f} a second")
    for name, key, unit in (
        ("queued", "queued_ms", "ms"),
        ("placed in", "placement_us", "µs"),
        ("started in", "start_ms", "ms"),
        ("ran", "run_ms", "ms"),
    ):
        figures = report[key]
        if figures is not None:
            say(f"{name:<13} p50 {figures['p50']:.1f} {unit}, p99 {figures['p99']:.1f}, at most {figures['max']:.1f}")
    say(f"at once       {report['running_at_once_max']} jobs at most")
    say(
        f"GPUs          {report['gpus_used']} of {report['gpus']} used; allocated {report['gpus_allocated_peak']:.2f}"
        f" at most, {report['gpus_allocated_mean']:.2f} on average; never more than"
        f" {100 * report['gpu_share_max']:.0f} % of one"
    )
    if report["retried"]:
        say(f"retried       {report['retried']}")
    if report.get("short"):
        say(f"short         {report['short']}")
    for picture in report["pictures"]:
        say(f"wrote         {picture}")
    say()
    say("That host is gone again. One that stays, in a terminal of its own, and a job on a quarter of its GPU:")
    command = _own_command()
    say(f"  {command} up")
    say(f"  {command} run --gpus 0.25 -- nvidia-smi -L" if report["probed"] else f"  {command} run --gpus 0.25 -- env")
    say(f"  {command} status")


def _own_command() -> str:
    """How this command is called again from here: by its name when that is on the PATH, else as it was called."""
    import shutil

    called = sys.argv[0]
    return "actorgrid" if shutil.which("actorgrid") or not os.access(called, os.X_OK) else os.path.relpath(called)


def short_uuids(uuids: Iterable[str]) -> dict[str, str]:
    """Eight characters of each UUID: its first, as tools show them, or its last where the first do not differ."""
    bare = {uuid: uuid.removeprefix("GPU-") for uuid in uuids}
    heads = {name[:8] for name in bare.values()}
    return {uuid: name[:8] if len(heads) == len(bare) else f"…{name[-7:]}" for uuid, name in bare.items()}


def _describe(gpus: Sequence[dict[str, Any]]) -> str:
    models = Counter(("" if gpu["source"] == "probed" else f"{gpu['source']} ") + gpu["model"] for gpu in gpus)
    return ", ".join(f"{count} {name}" for name, count in models.items())


def _stay(say: _Voice, url: str, data_dir: Path) -> None:
    say.line(f"\nthe host stays up at {url}; look around with: actorgrid status --data-dir {data_dir}")
    say.line("Ctrl-C stops it")
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        say.line("stopping")


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM into an interrupt, so that it stops the host and removes its directory too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
