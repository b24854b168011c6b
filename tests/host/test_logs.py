from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.host.logs import KEPT, AgentLog, logging_to


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.log"


@pytest.fixture
def handler(path: Path) -> Iterator[AgentLog]:
    handler = AgentLog(path, 4096)
    yield handler
    handler.close()


def say(handler: logging.Handler, message: str, **fields: Any) -> None:
    handler.handle(logging.makeLogRecord({"msg": message, "levelname": "INFO", "name": "t", **fields}))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_one_line_of_json(handler: AgentLog, path: Path) -> None:
    say(handler, "hello\nwörld")
    try:
        raise ValueError("x")
    except ValueError as error:
        say(handler, "bad %s", args=("thing",), exc_info=(type(error), error, error.__traceback__))
    first, second = lines(path)
    assert (first["message"], first["level"], first["logger"]) == ("hello\nwörld", "info", "t")
    assert second["message"] == "bad thing" and "ValueError: x" in second["error"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_huge_record_is_cut(handler: AgentLog, path: Path) -> None:
    say(handler, "x" * 10_000_000)
    assert path.stat().st_size < 65536 and lines(path)


def test_a_full_file_is_rotated_and_the_oldest_is_dropped(handler: AgentLog, path: Path) -> None:
    for n in range(KEPT + 3):
        assert handler.rotate_if_large() is (n > 0)
        for _ in range(50):
            say(handler, f"round {n} " + "x" * 100)
    assert not path.with_name(f"agent.log.{KEPT + 1}").exists()
    assert [lines(path.with_name(f"agent.log.{n}"))[0]["message"][:7] for n in (1, 2, 3)] == [
        "round 4",
        "round 3",
        "round 2",
    ]


def test_other_processes_follow_a_rotation(handler: AgentLog, path: Path) -> None:
    other = AgentLog(path, 4096)
    say(other, "x" * 5000)
    assert handler.rotate_if_large()
    say(other, "after")
    other.close()
    assert [line["message"] for line in lines(path)] == ["after"]


def test_what_outruns_the_rotation_is_dropped_and_counted(handler: AgentLog, path: Path) -> None:
    for _ in range(1000):
        say(handler, "x" * 100)
    assert path.stat().st_size < 3 * 4096
    handler.rotate_if_large()
    say(handler, "after")
    assert "records before this one were dropped" in lines(path)[0]["message"]


def test_the_root_logger_is_lent_and_given_back(path: Path) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    with logging_to(path, 10_000, "warning"):
        logging.getLogger("actorgrid.x").info("unseen")
        logging.getLogger("actorgrid.x").warning("seen")
    assert [line["message"] for line in lines(path)] == ["seen"]
    assert root.handlers == before and root.level == level
