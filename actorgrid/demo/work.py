"""The work of the demo: its jobs, the record of each, and what must be true of pictures and figures.

Every tile of every frame is a durable job on a quarter of a GPU; a frame's stitching depends on its tiles and takes
their results as arguments; the poster depends on all frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actorgrid.errors import ActorGridError, StartFailed, TaskCancelled

from .report import FrameStep, step_of
from .tiles import Tile, TilePicture, TileResult, make_poster, render_tile, stitch_frame

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
LEAST_COLOURS = 256
"""A picture with fewer is not the one we asked for."""


@dataclass(frozen=True)
class Submitted:
    """The futures of a whole run."""

    tiles: list[list[JobFuture[TileResult]]]
    frames: list[JobFuture[TilePicture]]
    poster: JobFuture[TilePicture]

    def all(self) -> list[JobFuture[Any]]:
        """All futures in the order they were submitted."""
        return [*(tile for frame in self.tiles for tile in frame), *self.frames, self.poster]


def submit(client: Client, tiling: Sequence[Sequence[Tile]]) -> Submitted:
    """Every job of the tour, each with those that it depends on."""
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


def result_of(future: Future[Any]) -> Any:
    """The result of a future. Raises TaskCancelled where the future would raise an error of its own."""
    try:
        return future.result()
    except CancelledError as error:
        raise TaskCancelled("a step of the demo was cancelled") from error


def steps_of(client: Client, work: Submitted, tiling: Sequence[Sequence[Tile]]) -> list[FrameStep]:
    """The record of every job, tiles first so that the ends of dependencies are known."""
    ended: dict[str, float] = {}
    steps: list[FrameStep] = []
    for number, frame in enumerate(work.tiles):
        for rendered, tile in zip(frame, tiling[number], strict=True):
            result = rendered.result()
            step = step_of(
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
        steps.append(step_of(job, ended, kind=kind, frame=number, pid=picture.pid, device="numpy"))
    return steps


def capacity_of(client: Client, gpus: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The resources that the host has to give out."""
    return {
        "gpu_milli": 1000 * len(gpus),
        "gpu_memory_mib": sum(gpu["memory_total_bytes"] for gpu in gpus) // 2**20,
        "cpu_milli": sum(host["cpu_milli"] for host in client.hosts()),
        "memory_mib": sum(host["memory_mib"] for host in client.hosts()),
    }


def check_pictures_can_be_made() -> None:
    """Raises StartFailed when a library that draws is missing."""
    from importlib.util import find_spec

    missing = [name for name, module in (("numpy", "numpy"), ("pillow", "PIL")) if find_spec(module) is None]
    if missing:
        raise StartFailed(
            f"the demo needs {' and '.join(missing)}", found="not installed", hint="pip install 'actorgrid[demo]'"
        )


def check_pictures(pictures: Sequence[TilePicture], poster: TilePicture, columns: int, rows: int) -> None:
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


def check_shares(report: dict[str, Any]) -> None:
    """Raises ActorGridError when more of a GPU was given out than there is."""
    if report["gpu_share_max"] > 1.0:
        raise ActorGridError("a GPU was given out more than once over", found=f"{report['gpu_share_max']} of one GPU")
