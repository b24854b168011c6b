"""``demo``: a real host, a real job of dependent steps, a picture of the work and one of how it was done.

Every tile of every frame is a durable job on a quarter of a GPU; a frame's stitching depends on its tiles and takes
their results as arguments; the poster depends on all frames.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    CallTimeout,
    DiskFull,
    StartFailed,
    StorageError,
    TaskCancelled,
)

from . import demo_report
from .call import CommandContext, json_option, pass_call
from .demo_report import Step
from .demo_tiles import Tile, TilePicture, TileResult, make_poster, plan, render_tile, stitch_frame
from .printing import say
from .show import on_terminal, share, table

if TYPE_CHECKING:
    from actorgrid.client.client import Client
    from actorgrid.client.futures import JobFuture

SIZES = {"small": (3, 4, 480, 300), "normal": (6, 8, 960, 600), "large": (8, 24, 1920, 1200)}
"""Frames, tiles of each, columns, rows."""
TILE_OPTIONS: dict[str, Any] = {"gpus": 0.25, "gpu_memory": "2GiB", "cpus": 0.125}
STITCH_OPTIONS: dict[str, Any] = {"cpus": 0.125, "priority": 60}
"""A frame that is complete goes before tiles of the next."""
ASKED = {
    "tile": {"gpu_milli": 250, "gpu_memory_mib": 2048, "cpu_milli": 125},
    "stitch": {"cpu_milli": 125},
    "poster": {"cpu_milli": 125},
}
"""The same by kind of job, as the ledger counts it."""
JOB_OPTIONS: dict[str, Any] = {
    "durable": True,
    "retries": 2,
    "timeout": 300.0,
    "env": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
}
PATIENCE_S = 600.0
SHOWN_ROWS = 12
LEAST_COLOURS = 256
"""A picture with fewer is not the one we asked for."""
COLUMNS = ["STEP", "GPU>", "UUID", "WITH", "PID>", "QUEUED_MS>", "PLACED_US>", "START_MS>", "RUN_MS>"]


@dataclass(frozen=True)
class Submitted:
    """The futures of a whole run."""

    tiles: list[list[JobFuture[TileResult]]]
    frames: list[JobFuture[TilePicture]]
    poster: JobFuture[TilePicture]

    def all(self) -> list[JobFuture[Any]]:
        """In the order they were submitted."""
        return [*(tile for frame in self.tiles for tile in frame), *self.frames, self.poster]


@click.command()
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
    import actorgrid

    _check_pictures_can_be_made()
    _prepare(out)
    frames_by_size, tiles_by_size, columns, rows = SIZES[size]
    tiling = plan(frames or frames_by_size, tiles or tiles_by_size, columns, rows)
    say = _Voice(call.json)
    began = time.monotonic()
    with _sigterm_as_interrupt(), actorgrid.LocalCluster(gpus=None) as cluster:
        client = cluster.client()
        gpus = sorted(client.gpus(), key=lambda gpu: gpu["index"])
        if not gpus:
            raise StartFailed("the host has no GPUs to share", hint="actorgrid doctor")
        say.line(f"host up in {time.monotonic() - began:.1f} s at {cluster.url} with {_describe(gpus)}")
        work = _submit(client, tiling)
        say.line(
            f"submitted {len(work.all())} jobs: {len(tiling)} frames of {len(tiling[0])} tiles, stitching, a poster"
        )
        _follow(work, say)
        steps = _steps(client, work, tiling)
        pictures = [frame.result() for frame in work.frames]
        poster = work.poster.result()
        _check_pictures(pictures, poster, columns, rows)
        report = demo_report.summary(steps, len(gpus))
        _check_shares(report)
        from .timeline import timeline_png

        title = f"actorgrid demo: {report['jobs']} jobs on {_describe(gpus)} in {report['elapsed_s']:.1f} s"
        subtitle = (
            f"a Mandelbrot zoom, {len(tiling)} frames of {len(tiling[0])} tiles,"
            f" {share(round(TILE_OPTIONS['gpus'] * 1000))} GPU and {TILE_OPTIONS['gpu_memory']} each;"
            f" rendered with {', '.join(report['devices'])}"
        )
        lanes = [(gpu["device_id"], gpu["model"]) for gpu in gpus]
        _write(out / "mandelbrot.png", poster.png)
        short = demo_report.shortage(steps, _capacity(client, gpus), ASKED)
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


# -- the work


def _submit(client: Client, tiling: Sequence[Sequence[Tile]]) -> Submitted:
    tiles: list[list[Any]] = []
    frames: list[Any] = []
    for frame in tiling:
        label = str(frame[0].frame.number + 1)
        tiles.append(
            [
                client.submit(render_tile, tile, name=f"tile {label}.{tile.number + 1}", **TILE_OPTIONS, **JOB_OPTIONS)
                for tile in frame
            ]
        )
        frames.append(client.submit(stitch_frame, tiles[-1], name=f"stitch {label}", **STITCH_OPTIONS, **JOB_OPTIONS))
    poster: Any = client.submit(make_poster, frames, name="poster", **STITCH_OPTIONS, **JOB_OPTIONS)
    return Submitted(tiles, frames, poster)


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
                _value(future)
                number = frame_of.get(id(future))
                if number is not None:
                    progress.tile_done(number)
                elif future in work.frames:
                    progress.frame_done(work.frames.index(future))
            if time.monotonic() - began > PATIENCE_S:
                raise CallTimeout(
                    f"{len(pending)} steps are not done after {PATIENCE_S:.0f} s", hint="try --size small"
                )


def _value(future: Future[Any]) -> Any:
    try:
        return future.result()
    except CancelledError as error:
        raise TaskCancelled("a step of the demo was cancelled") from error


def _steps(client: Client, work: Submitted, tiling: Sequence[Sequence[Tile]]) -> list[Step]:
    """The record of every job, tiles first so that the ends of dependencies are known."""
    ended: dict[str, float] = {}
    steps: list[Step] = []
    for number, frame in enumerate(work.tiles):
        for rendered, tile in zip(frame, tiling[number], strict=True):
            result = rendered.result()
            step = demo_report.step_of(
                client.job(rendered.job_id), ended, kind="tile", frame=number, pid=result.pid, device=result.device
            )
            if result.tile != tile or result.gpu_uuids.split(",") != list(step.gpu_uuids):
                raise ActorGridError(
                    f"{step.name} did not run where it was placed",
                    asked=", ".join(step.gpu_uuids),
                    found=result.gpu_uuids or "no device in its environment",
                    hint="please report this",
                )
            steps.append(step)
    stitching = [(number, "stitch", future) for number, future in enumerate(work.frames)]
    for number, kind, future in [*stitching, (len(tiling) - 1, "poster", work.poster)]:
        picture = future.result()
        job = client.job(future.job_id)
        steps.append(demo_report.step_of(job, ended, kind=kind, frame=number, pid=picture.pid, device="numpy"))
    return steps


def _capacity(client: Client, gpus: Sequence[dict[str, Any]]) -> dict[str, int]:
    """What the host has to give out."""
    return {
        "gpu_milli": 1000 * len(gpus),
        "gpu_memory_mib": sum(gpu["memory_total_bytes"] for gpu in gpus) // 2**20,
        "cpu_milli": sum(host["cpu_milli"] for host in client.hosts()),
        "memory_mib": sum(host["memory_mib"] for host in client.hosts()),
    }


# -- checks


def _check_pictures_can_be_made() -> None:
    from importlib.util import find_spec

    missing = [name for name, module in (("numpy", "numpy"), ("pillow", "PIL")) if find_spec(module) is None]
    if missing:
        raise StartFailed(
            f"the demo needs {' and '.join(missing)}", found="not installed", hint="pip install 'actorgrid[demo]'"
        )


def _check_pictures(pictures: Sequence[TilePicture], poster: TilePicture, columns: int, rows: int) -> None:
    """Raises ActorGridError unless every picture has its size, is a PNG and shows something."""
    import io

    from PIL import Image

    for picture in [*pictures, poster]:
        with Image.open(io.BytesIO(picture.png)) as image:
            image.load()
            found = image.size
        wanted = (picture.columns, picture.rows) if picture is poster else (columns, rows)
        if found != wanted or picture.distinct_colours < LEAST_COLOURS or found < (columns, rows):
            raise ActorGridError(
                f"frame {picture.frame + 1} is not the picture it should be",
                asked=f"{wanted[0]}x{wanted[1]} pixels, {LEAST_COLOURS} colours or more",
                found=f"{found[0]}x{found[1]} pixels, {picture.distinct_colours} colours",
            )


def _check_shares(report: dict[str, Any]) -> None:
    if report["gpu_share_max"] > 1.0:
        raise ActorGridError("a GPU was given out more than once over", found=f"{report['gpu_share_max']} of one GPU")


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
    """A line for each finished frame."""

    def __init__(self, sizes: Sequence[int], say: _Voice) -> None:
        self._sizes = sizes
        self._say = say
        self._done = 0
        self._total = sum(sizes)
        self._began = time.monotonic()

    def tile_done(self, frame: int) -> None:
        """One more tile of a frame."""
        self._done += 1

    def frame_done(self, frame: int) -> None:
        """A frame is stitched."""
        elapsed = time.monotonic() - self._began
        self._say.line(f"frame {frame + 1} stitched; {self._done} of {self._total} tiles done after {elapsed:.1f} s")


class _Bars(_Progress):
    """Bars that move."""

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


def _print(steps: Sequence[Step], report: dict[str, Any]) -> None:
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
    models: dict[str, int] = {}
    for gpu in gpus:
        source = "" if gpu["source"] == "probed" else f"{gpu['source']} "
        name = f"{source}{gpu['model']}"
        models[name] = models.get(name, 0) + 1
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
def _sigterm_as_interrupt() -> Iterator[None]:
    """So that being told to stop stops the host and removes its directory too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
