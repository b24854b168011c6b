"""``actorgrid replay`` as people run it: a process of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SAMPLES = Path(__file__).parent / "samples"
ROOT = Path(__file__).resolve().parents[2]
NODES = ["--nodes", str(SAMPLES / "nodes.csv")]
NODES_MAP = ["host=name", "cores=cpus", "ram_gib=memory_gib", "devices=gpu_count"]
JOBS = ["--tasks", str(SAMPLES / "jobs.csv")]
JOBS_MAP = ["job=id", "arrived=submit_at", "seconds=duration_s", "team=tenant", "until=deadline_at"]


def mapped(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--map", pair)]


OWN_FILES = [*NODES, *JOBS, *mapped(*NODES_MAP, *JOBS_MAP)]


def replay(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "actorgrid", "replay", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def document(*words: str) -> dict[str, Any]:
    done = replay(*words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == 1 and not done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def without_latencies(found: dict[str, Any]) -> dict[str, Any]:
    for run in found["runs"]:
        del run["latency_us"]
    for each in found["summary"]:
        for part in ("mean", "deviation"):
            each[part] = {name: value for name, value in each[part].items() if not name.startswith("latency_us")}
    return found


def test_openb_fills_up_as_published() -> None:
    found = document("openb", "--policy", "best_fit", "--seeds", "2")
    assert (found["nodes"], found["gpus"], found["mode"]) == (1213, 6212, "inflate")
    (summary,) = found["summary"]
    # 92.86 +- 0.14 in the paper's results.
    assert 0.92 < summary["mean"]["allocated_at_100"] < 0.94
    assert summary["deviation"]["allocated_at_100"] > 0
    first, second = found["runs"]
    assert first["seed"] == 0 and second["seed"] == 1 and first["figures"] != second["figures"]
    assert [point["arrived"] for point in first["curve"]] == sorted(point["arrived"] for point in first["curve"])


def test_the_same_seed_gives_the_same_figures() -> None:
    words = ["openb", "--scale", "0.05", "--policy", "random", "--policy", "best_fit", "--seed", "7"]
    assert without_latencies(document(*words)) == without_latencies(document(*words))


def test_twice_the_nodes_are_twice_the_gpus() -> None:
    assert document("openb", "--scale", "2", "--policy", "first_fit", "--until", "0.1")["gpus"] == 12_424


def test_policies_and_queues_stand_side_by_side() -> None:
    words = ["philly-11cb48", "--limit", "200", "--cluster", "2x8", "--load", "2"]
    queues = ["--queue", "fifo", "--queue", "easy_backfill"]
    done = replay(*words, "--policy", "best_fit", *queues)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "best_fit fifo" in lines[1] and "best_fit easy_backfill" in lines[1]
    for row in ("allocated, mean", "completion, p99", "rho over 1", "makespan", "schedule p99.9", "preemptions"):
        assert any(line.startswith(row) for line in lines), row
    for row in ("jobs", "mean", "p50", "p99", "p99.9"):
        assert any(line.startswith(f"8-15: {row}") for line in lines), row
    assert done.stderr == "", "no bar where nobody watches"


def test_chronus_counts_deadlines_and_tenants() -> None:
    found = document("chronus", "--limit", "300", "--cluster", "2x8", "--policy", "best_fit", "--queue", "fifo")
    (run,) = found["runs"]
    assert run["figures"]["deadlines"]["strict"]["jobs"] > 100
    assert run["figures"]["fairness"]["tenants"] > 5 and 0 < run["figures"]["fairness"]["jain"] <= 1


def test_openb_in_time_with_and_without_a_queue() -> None:
    words = ["openb", "--scale", "0.01", "--limit", "2000", "--policy", "best_fit"]
    churn = document(*words, "--mode", "churn")["runs"][0]["figures"]
    queue = document(*words, "--mode", "queue", "--queue", "priority")["runs"][0]["figures"]
    assert churn["refused"] + churn["finished"] == 2000
    # One asks for more than any of these twelve nodes has.
    assert (queue["refused"], queue["finished"], queue["never_started"]) == (1, 1999, 0)


def test_files_of_ones_own_are_replayed_by_a_map() -> None:
    found = document(*OWN_FILES, "--policy", "best_fit")
    (run,) = found["runs"]
    assert (found["tasks"], found["gpus"], found["mode"]) == (4, 14, "queue")
    assert run["figures"]["finished"] == 4
    assert run["figures"]["deadlines"]["strict"] == {"jobs": 2, "missed": 1, "refused": 0}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], "BadRequest", "nothing to replay"),
        (["opnb"], "BadRequest", "no trace"),
        (["openb", *JOBS], "BadRequest", "both say"),
        ([*JOBS], "BadRequest", "need nodes"),
        ([*OWN_FILES, "--cluster", "2x8"], "BadRequest", "both say what the nodes are"),
        ([*NODES, *JOBS, *mapped("jobb=id")], "BadRequest", "no file has a column"),
        (["openb", "--map", "a=id"], "BadRequest", "files of your own"),
        (["openb", "--policy", "nope"], "UnknownPolicy", "no placement policy"),
        (["philly", "--queue", "nope"], "UnknownPolicy", "no scheduling policy"),
        (["openb", "--queue", "fifo"], "BadRequest", "has no queue"),
        (["openb", "--load", "0.9"], "BadRequest", "arrivals in time"),
        (["openb", "--scale", "-1"], "BadRequest", "no cluster"),
        (["openb", "--until", "99"], "BadRequest", "out of range"),
        (["openb-multigpu20", "--mode", "churn"], "BadRequest", "does not say when it arrives"),
        (["philly", "--restart", "-1"], "BadRequest", "not negative"),
        (["philly", "--checkpoint", "0"], "BadRequest", "interval"),
        (["openb", "--plot", "picture.jpg"], "BadRequest", "no kind of picture"),
        (["openb", "--mode", "sideways"], "BadRequest", "sideways"),
    ],
)
def test_a_wrong_call_is_refused_with_a_named_error_and_a_next_step(words: list[str], code: str, message: str) -> None:
    done = replay(*words, "--json")
    assert done.returncode == 2, done.stdout
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code and message in error["message"] and error["hint"]


def test_an_error_in_a_file_names_its_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text("id,gpu_count\na,1\nb,many\n")
    error = json.loads(replay("--tasks", str(path), "--cluster", "2x8", "--json").stdout)["error"]
    assert error["details"] == {"file": str(path), "line": 3, "column": "gpu_count"}
    assert error["found"] == "'many'"


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    picture = tmp_path / "filled.png"
    done = replay("openb", "--scale", "0.02", "--policy", "best_fit", "--plot", str(picture))
    assert done.returncode == 0 and f"drawn: {picture}" in done.stdout, done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib_the_way_to_get_it_is_told_before_anything_is_replayed() -> None:
    program = "import sys; sys.modules['matplotlib'] = None; from actorgrid.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "replay", "openb", "--plot", "picture.png"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 5 and done.stdout == ""
    assert "pictures need matplotlib" in done.stderr and "pip install 'actorgrid[plot]'" in done.stderr


def started(*words: str) -> tuple[subprocess.Popen[str], int]:
    """The command with a terminal for stderr; the other end of it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "replay", *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
    )
    os.close(theirs)
    return process, ours


def test_a_bar_is_drawn_for_a_person_and_an_interrupt_ends_it_in_order_with_what_is_done() -> None:
    process, terminal = started("openb", "--scale", "0.2", "--policy", "best_fit", "--seeds", "1000")
    try:
        seen = b""
        while b"seed 2" not in seen:  # two are done
            seen += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            seen += piece
            if not piece:
                break
        assert process.stdout is not None
        shown = process.stdout.read()
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        assert process.stdout is not None
        process.stdout.close()
    assert "allocated at 100 % arrived" in shown
    assert b"of 1000" in seen and b"interrupted" in seen and b"Traceback" not in seen
