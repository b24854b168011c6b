"""Pictures: each mode, both formats, the same file from the same runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from actorgrid.errors import BadRequest, DataDirUnusable
from actorgrid.replay import catalogue, plots, runs
from actorgrid.replay.runs import Run, Setup

matplotlib = pytest.importorskip("matplotlib", reason="the extra plot is not installed")


@pytest.fixture(scope="module")
def by_mode() -> dict[str, Sequence[Run]]:
    """Small runs of each mode."""
    openb = catalogue.tasks_of(catalogue.find("openb"))[-600:]
    found = {}
    for mode in runs.MODES:
        setup = Setup(catalogue.nodes_of("4x8"), openb, mode, ("best_fit", "random"), ("fifo", "priority"), (0, 1))
        found[mode] = list(runs.replay(runs.prepare(setup)))
    return found


@pytest.mark.system
@pytest.mark.parametrize("suffix", plots.SUFFIXES)
@pytest.mark.parametrize("mode", runs.MODES)
def test_the_same_runs_give_the_same_picture(
    tmp_path: Path, by_mode: dict[str, Sequence[Run]], mode: str, suffix: str
) -> None:
    pictures = [tmp_path / f"{n}{suffix}" for n in range(2)]
    for picture in pictures:
        plots.draw(picture, mode, "a title & more", by_mode[mode])
    first, second = (picture.read_bytes() for picture in pictures)
    assert first == second and len(first) > 10_000
    if suffix == ".svg":
        text = first.decode()
        labels = {run.label for run in by_mode[mode]}
        assert all(label in text for label in labels) and "a title &amp; more" in text
        assert len(labels) == (4 if mode == "queue" else 2)


def test_more_lines_than_colours_differ_by_their_dashes(tmp_path: Path, by_mode: dict[str, Sequence[Run]]) -> None:
    run = by_mode["inflate"][0]
    many = [replace(run, policy=f"policy {n}") for n in range(len(plots.COLOURS) + 1)]
    plots.draw(tmp_path / "many.svg", "inflate", "many", many)
    assert "stroke-dasharray" in (tmp_path / "many.svg").read_text()


def test_a_place_that_cannot_be_written_is_a_named_error(tmp_path: Path, by_mode: dict[str, Sequence[Run]]) -> None:
    with pytest.raises(DataDirUnusable, match="cannot be written"):
        plots.draw(tmp_path / "nowhere" / "picture.png", "inflate", "title", by_mode["inflate"])


def test_another_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no kind of picture"):
        plots.check(tmp_path / "picture.pdf")
