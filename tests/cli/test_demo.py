"""The demo: its pictures are right, its figures add up, and the whole runs on a real host."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the demo extra is not installed")
pytest.importorskip("PIL", reason="the demo extra is not installed")

from actorgrid.cli import demo
from actorgrid.demo import report as demo_report
from actorgrid.demo import tiles as demo_tiles
from actorgrid.demo import timeline, work
from actorgrid.demo.report import FrameStep, levels, percentile, step_of, summary
from actorgrid.demo.tiles import Frame, Tile, make_poster, plan, render_tile, stitch_frame
from actorgrid.errors import ActorGridError, StartFailed

# -- the pictures


@pytest.mark.parametrize(("frames", "tiles", "columns", "rows"), [(1, 1, 10, 7), (3, 12, 101, 53), (2, 7, 64, 64)])
def test_the_tiles_of_a_frame_cover_it_once(frames: int, tiles: int, columns: int, rows: int) -> None:
    planned = plan(frames, tiles, columns, rows)
    assert len(planned) == frames
    for frame in planned:
        assert len(frame) == tiles
        covered = [
            (x, y)
            for tile in frame
            for x in range(tile.left, tile.left + tile.columns)
            for y in range(tile.top, tile.top + tile.rows)
        ]
        assert sorted(covered) == [(x, y) for x in range(columns) for y in range(rows)]
    widths = [frame[0].frame.width for frame in planned]
    assert widths == sorted(widths, reverse=True)


def escape_count(c: complex, iterations: int) -> float:
    z = 0j
    for count in range(iterations):
        z = z * z + c
        if abs(z) > demo_tiles.ESCAPE:
            return count + 2 - math.log2(math.log(abs(z)))
    return -1.0


def test_rendered_counts_agree_with_the_definition_point_by_point() -> None:
    import numpy as np

    frame = Frame(0, (-0.65, 0.1), 3.0, 12, 8, 200, 1)
    tile = Tile(frame, 0, 3, 2, 9, 6)
    result = render_tile(tile)
    counts = np.frombuffer(result.counts, np.float32).reshape(6, 9)
    step = frame.width / frame.columns
    for row in range(6):
        for column in range(9):
            x = frame.centre[0] + (column + 3 - 5.5) * step
            y = frame.centre[1] - (row + 2 - 3.5) * step
            assert counts[row, column] == pytest.approx(max(-1.0, escape_count(complex(x, y), 200)), abs=1e-3)
    light = np.frombuffer(result.light, np.float32)
    assert 0.5 < light.min() <= light.max() < 1.3
    assert result.pid == os.getpid()


def test_torch_computes_what_numpy_computes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import numpy as np

    tile = plan(3, 2, 60, 40)[1][0]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    counts, light = (np.frombuffer(data, np.float32) for data in demo_tiles.with_torch(tile, device))
    plain_counts, plain_light, _ = demo_tiles._with_numpy(tile)
    inside = np.frombuffer(plain_counts, np.float32) < 0
    assert np.mean((counts < 0) == inside) > 0.999
    # Points close to the set are chaotic: the last bit of one product decides their count.
    close = np.isclose(counts, np.frombuffer(plain_counts, np.float32), atol=1e-2)
    assert np.mean(close) > 0.99
    assert np.mean(np.isclose(light, np.frombuffer(plain_light, np.float32), atol=1e-2)) > 0.99


def test_stitched_tiles_are_the_frame_rendered_whole() -> None:
    whole = plan(2, 1, 48, 30)
    cut = plan(2, 6, 48, 30)
    for one, many in zip(whole, cut, strict=True):
        alone = stitch_frame([render_tile(tile) for tile in one])
        together = stitch_frame([render_tile(tile) for tile in many])
        assert alone.png == together.png
        assert (together.columns, together.rows) == (48, 30)
        assert together.distinct_colours > 100


def test_a_missing_tile_or_one_of_another_frame_is_noticed() -> None:
    frames = [[render_tile(tile) for tile in frame] for frame in plan(2, 4, 16, 12)]
    with pytest.raises(ValueError, match="cover"):
        stitch_frame(frames[0][1:])
    with pytest.raises(ValueError, match="is of frame"):
        stitch_frame([*frames[0][1:], frames[1][0]])


def test_the_poster_shows_the_last_frame_and_the_way_there() -> None:
    from PIL import Image

    pictures = [stitch_frame([render_tile(tile) for tile in frame]) for frame in plan(3, 2, 120, 80)]
    poster = make_poster(pictures)
    image = Image.open(io.BytesIO(poster.png))
    assert image.size == (poster.columns, poster.rows)
    assert poster.columns > 120 and poster.rows > 80
    work.check_pictures(pictures, poster, 120, 80)
    alone = make_poster(pictures[-1:])
    assert alone.rows < poster.rows


def test_an_empty_picture_is_refused() -> None:
    frame = Frame(0, (0.0, 0.0), 0.01, 20, 10, 50, 1)
    black = stitch_frame([render_tile(Tile(frame, 0, 0, 0, 20, 10))])
    with pytest.raises(ActorGridError, match="not the picture"):
        work.check_pictures([black], black, 20, 10)


# -- the figures


def step(
    name: str, start: float, end: float, gpu: int | None = 0, ready: float = 0.0, share: float = 0.25
) -> FrameStep:
    return FrameStep(
        job_id=name,
        name=name,
        frame=0,
        kind="tile" if gpu is not None else "stitch",
        gpu_indexes=() if gpu is None else (gpu,),
        gpu_uuids=() if gpu is None else (f"GPU-{gpu}",),
        gpu_share=0.0 if gpu is None else share,
        ready_at=ready,
        placed_at=start,
        started_at=start + 0.5,
        ended_at=end,
        placement_us=None if gpu is None else 3.0,
        attempts=1,
        pid=1,
        device="cpu",
    )


STEPS = [step("a", 1, 3), step("b", 1, 2), step("c", 2, 5, gpu=1, share=0.5), step("d", 5, 6, gpu=None, ready=5)]


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile(list(map(float, range(1, 101))), 0.99) == 99.0
    assert demo_report.spread([]) is None


def test_allocated_shares_follow_grants_and_ends() -> None:
    assert levels(STEPS) == [(1, 0.5, 2), (2, 0.75, 2), (3, 0.5, 1), (5, 0.0, 1), (6, 0.0, 0)]
    report = summary(STEPS, gpus=8)
    assert report["gpus_allocated_peak"] == 0.75
    assert report["gpus_allocated_mean"] == pytest.approx((0.5 + 0.75 + 0.5 * 2) / 6, abs=1e-3)
    assert report["gpu_share_max"] == 0.5
    assert report["gpus_used"] == 2
    assert report["running_at_once_max"] == 2
    assert report["queued_ms"]["max"] == 2000.0
    assert report["placement_us"] == {"p50": 3.0, "p99": 3.0, "max": 3.0}


def test_one_share_given_out_twice_would_be_seen() -> None:
    report = summary([step(name, 1, 3, share=0.75) for name in "ab"], gpus=1)
    assert report["gpu_share_max"] == 1.5
    with pytest.raises(ActorGridError, match="more than once"):
        work.check_shares(report)


def test_waiting_counts_from_the_last_dependency_on() -> None:
    job: dict[str, Any] = {
        "job_id": "j",
        "name": "n",
        "state": "succeeded",
        "submitted_at": 1.0,
        "depends_on": ["x", "y"],
        "resources": {"gpu_count": 1, "gpu_milli": 250},
        "attempts": [{"placed_at": 9.5, "started_at": 9.6, "ended_at": 10.0, "gpu_indexes": [2], "gpu_uuids": ["u"]}],
    }
    ended = {"x": 7.0, "y": 9.0}
    found = step_of(job, ended, kind="tile", frame=1, pid=4, device="cpu")
    assert found.queued_ms == pytest.approx(500)
    assert found.gpu_share == 0.25
    assert ended["j"] == 10.0
    job["attempts"][0]["started_at"] = None
    with pytest.raises(ActorGridError, match="not complete"):
        step_of(job, ended, kind="tile", frame=1, pid=4, device="cpu")


def test_short_names_of_devices_stay_distinct() -> None:
    real = demo.short_uuids(["GPU-12345678-aaaa", "GPU-87654321-aaaa"])
    assert set(real.values()) == {"12345678", "87654321"}
    simulated = demo.short_uuids(["sim-0b8c-0000-0001", "sim-0b8c-0000-0002"])
    assert len(set(simulated.values())) == 2


# -- the timeline


def test_steps_that_overlap_get_rows_of_their_own() -> None:
    lanes = timeline.lay_out(STEPS, [("GPU-0", "H100"), ("GPU-1", "H100"), ("GPU-2", "H100")])
    assert [lane.title for lane in lanes] == ["GPU 0", "GPU 1", "GPU 2", "CPU"]
    for lane in lanes:
        for row in lane.rows:
            assert all(one.ended_at <= other.placed_at for one, other in itertools.pairwise(row))
    assert sum(len(row) for lane in lanes for row in lane.rows) == len(STEPS)


@pytest.mark.parametrize(("least", "expected"), [(0.03, 0.05), (1, 1), (1.1, 2), (2.0, 2), (7, 10), (0.2, 0.2)])
def test_ticks_are_round_numbers(least: float, expected: float) -> None:
    assert timeline.nice_step(least) == pytest.approx(expected)


def test_the_timeline_is_a_picture_with_a_bar_for_every_gpu_in_use() -> None:
    from PIL import Image

    png = timeline.timeline_png(STEPS, [("GPU-0", "H100"), ("GPU-1", "H100")], "title", "subtitle", 1)
    image = Image.open(io.BytesIO(png)).convert("RGB")
    assert image.width == timeline.WIDTH
    colours = {colour for _, colour in image.getcolors(maxcolors=1 << 20) or []}
    assert {timeline.LINE, timeline.TINT_OF_CPU} <= colours
    assert len(colours) > 8


# -- the whole


def run_demo(*arguments: str, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
    return subprocess.run(
        [sys.executable, "-m", "actorgrid", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment,
        check=False,
    )


@pytest.mark.system
def test_the_demo_renders_on_a_real_host_and_reports_every_step(tmp_path: Path) -> None:
    from PIL import Image

    done = run_demo("--size", "small", "--frames", "2", "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    report, steps = answer["summary"], answer["steps"]
    assert (report["jobs"], report["tiles"], len(steps)) == (11, 8, 11)
    assert 0.25 <= report["gpus_allocated_peak"] <= report["gpus"]
    assert 0 < report["gpu_share_max"] <= 1.0
    assert report["placement_us"]["p50"] > 0
    ends = {found["name"]: found["ended_at"] for found in steps}
    for found in steps:
        assert found["ready_at"] <= found["placed_at"] <= found["started_at"] <= found["ended_at"]
        if found["kind"] == "tile":
            assert len(found["gpu_uuids"]) == 1
            assert ends[found["name"]] <= ends[f"stitch {found['frame'] + 1}"]
    assert len({found["pid"] for found in steps}) > 1
    with Image.open(tmp_path / "out" / "mandelbrot.png") as image:
        assert image.size > (480, 300)
    with Image.open(tmp_path / "out" / "timeline.png") as image:
        assert image.width == timeline.WIDTH


def test_a_place_that_cannot_be_written_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run_demo("--size", "small", "--out", str(tmp_path / "file" / "out"), timeout_s=30)
    assert done.returncode == 2
    assert "cannot write" in done.stderr and "--out" in done.stderr


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else real(name))
    with pytest.raises(StartFailed, match="pillow") as caught:
        work.check_pictures_can_be_made()
    assert "actorgrid[demo]" in caught.value.hint
