from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from actorgrid.client.find import bearer_token_in, locate
from actorgrid.errors import HostUnreachable


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ACTORGRID_URL", raising=False)
    monkeypatch.delenv("ACTORGRID_TOKEN", raising=False)
    monkeypatch.setenv("ACTORGRID_DATA_DIR", str(tmp_path / "default"))


def agent(folder: Path, pid: int, url: str = "http://127.0.0.1:7400") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "agent.json").write_text(json.dumps({"url": url, "pid": pid}))
    (folder / "admin.token").write_text("from-file\n")


def test_what_is_given_counts_first() -> None:
    assert locate(url="http://127.0.0.1:1", token="t") == ("http://127.0.0.1:1", "t")


def test_the_environment_counts_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORGRID_URL", "http://127.0.0.1:2")
    monkeypatch.setenv("ACTORGRID_TOKEN", "secret")
    assert locate() == ("http://127.0.0.1:2", "secret")


def test_the_fencing_token_of_work_is_not_shown_to_an_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inside of work ACTORGRID_TOKEN says what was granted to it, which opens nothing."""
    monkeypatch.setenv("ACTORGRID_TOKEN", "0000000001-000000000000042")
    monkeypatch.setenv("ACTORGRID_URL", "http://127.0.0.1:2")
    assert locate() == ("http://127.0.0.1:2", "")
    agent(tmp_path / "default", os.getpid())
    monkeypatch.delenv("ACTORGRID_URL")
    assert locate() == ("http://127.0.0.1:7400", "from-file")


@pytest.mark.parametrize(
    "text", ["agk1.wnpx6xcu.jzmk", "x" * 26, "0000000001-00000000000004", "00000000010-000000000000042"]
)
def test_what_has_another_form_is_a_bearer_token(text: str) -> None:
    assert bearer_token_in({"ACTORGRID_TOKEN": text}) == text
    assert bearer_token_in({"ACTORGRID_TOKEN": ""}) is bearer_token_in({}) is None


def test_a_data_directory_beats_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACTORGRID_URL", "http://127.0.0.1:2")
    agent(tmp_path / "mine", os.getpid())
    assert locate(tmp_path / "mine") == ("http://127.0.0.1:7400", "from-file")


def test_the_default_directory_counts_last_and_lends_its_token_to_its_own_url(tmp_path: Path) -> None:
    agent(tmp_path / "default", os.getpid())
    assert locate() == ("http://127.0.0.1:7400", "from-file")
    assert locate(url="http://127.0.0.1:7400/") == ("http://127.0.0.1:7400/", "from-file")
    assert locate(url="http://127.0.0.1:9") == ("http://127.0.0.1:9", "")


def test_no_agent_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(HostUnreachable, match="actorgrid up --data-dir"):
        locate(tmp_path / "nothing")


def test_an_agent_that_died_is_named_as_dead(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    agent(tmp_path / "old", pid)
    with pytest.raises(HostUnreachable, match="has ended"):
        locate(tmp_path / "old")


def test_a_broken_agent_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "agent.json").write_text("{")
    with pytest.raises(HostUnreachable, match="does not hold"):
        locate(tmp_path / "broken")
