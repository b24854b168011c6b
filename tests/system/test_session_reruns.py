"""A session task that runs again after its worker was lost: with a greater token than before, and counted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actorgrid.client.user import user_name
from tests.processes import until
from tests.system.agent import Agent


def leave_a_mark(folder: str, name: str) -> tuple[str, int]:
    """Says under which grant it runs, and then waits until it is told to go on."""
    import os
    from pathlib import Path

    import actorgrid

    task = actorgrid.current_task()
    seen = len(list(Path(folder).glob(f"{name}.run.*")))
    text = json.dumps([str(task.token), task.attempt_number, os.getpid(), task.lease_id])
    draft = Path(folder, f"{name}.draft")
    draft.write_text(text)
    draft.rename(Path(folder, f"{name}.run.{seen + 1}"))
    Path(folder, f"{name}.go").read_text()
    return str(task.token), task.attempt_number


def mark(folder: Path, name: str, run: int) -> list[Any]:
    path = folder / f"{name}.run.{run}"
    until(path.exists, f"run {run} of {name}")
    return list(json.loads(path.read_text()))


def let_go(folder: Path, name: str) -> None:
    (folder / f"{name}.go").write_text("")


def test_a_rerun_has_a_greater_token_though_an_older_lease_is_free(
    make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    client = make_agent().start().client()
    options = {"cpus": 0.1}
    futures, marks = {}, {}
    for name in ("one", "two"):
        os.mkfifo(tmp_path / f"{name}.go")
        futures[name] = client.submit(leave_a_mark, str(tmp_path), name, **options)
        marks[name] = mark(tmp_path, name, 1)
    newer, older = sorted(marks, key=lambda name: str(marks[name][0]), reverse=True)
    assert marks[newer][3] != marks[older][3], "two leases"
    let_go(tmp_path, older)
    assert futures[older].result(60) == (marks[older][0], 1)
    os.kill(marks[newer][2], signal.SIGKILL)  # while the older lease's worker has nothing to do
    token, number, *_ = mark(tmp_path, newer, 2)
    let_go(tmp_path, newer)
    assert futures[newer].result(60) == (token, number)
    assert token > marks[newer][0] and number == 2

    def plain() -> int:
        import actorgrid

        return actorgrid.current_task().attempt_number

    assert list(client.map(lambda _: plain(), range(4), **options)) == [1] * 4


def test_where_no_room_is_for_a_newer_lease_an_older_one_is_given_back_for_it(
    make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    client = make_agent().start().client()
    half = sum(host["cpu_milli"] for host in client.hosts()) / 2000
    futures, marks = {}, {}
    for name in ("one", "two"):
        os.mkfifo(tmp_path / f"{name}.go")
        futures[name] = client.submit(leave_a_mark, str(tmp_path), name, cpus=half)
        marks[name] = mark(tmp_path, name, 1)
    newer, older = sorted(marks, key=lambda name: str(marks[name][0]), reverse=True)
    client.set_quota(user_name(), cpus=half)  # from now on one lease is all that there is room for
    os.kill(marks[newer][2], signal.SIGKILL)
    let_go(tmp_path, older)
    token, number, *_ = mark(tmp_path, newer, 2)
    assert token > marks[newer][0] and number == 2
    let_go(tmp_path, newer)
    assert futures[newer].result(60) == (token, 2)
