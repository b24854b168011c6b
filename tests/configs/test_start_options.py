"""What a start was told, and what the next one makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actorgrid.configs.load import load_settings
from actorgrid.configs.start_options import Flag, SettingAtStart, StartOptions, last_start
from actorgrid.errors import InvalidSetting, MalformedConfig

FOUR = Flag("simulated:4xH100-80GB", "--gpus 4")


def keep(data_dir: Path, **flags: str) -> None:
    given = {key.replace("__", "."): Flag(text, f"--set {key}") for key, text in flags.items()}
    (data_dir / "start.json").write_bytes(StartOptions(given).encoded())


def test_what_an_earlier_start_was_told_holds_where_nothing_else_is_said(tmp_path: Path) -> None:
    keep(tmp_path, gpus__source="none", scheduling__queue_max="7", work__kill_grace_s="1")
    (tmp_path / "config").mkdir()
    (tmp_path / "config/cluster.yaml").write_text("scheduling:\n  queue_max: 8\n")
    loaded = load_settings(None, tmp_path, {"work.kill_grace_s": "2"}, {})
    settings = loaded.settings
    assert (settings.gpus.source, settings.scheduling.queue_max, settings.work.kill_grace_s) == ("none", 8, 2)
    assert settings.origin("gpus.source") == "--set gpus__source (an earlier start)"
    assert load_settings(None, tmp_path, {}, {}, forget=True).settings.gpus.source == "auto"


def test_a_flag_that_this_version_does_not_know_says_nothing_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    keep(tmp_path, gpus__colour="red")
    assert load_settings(None, tmp_path, {}, {}).settings.gpus.source == "auto"
    keep(tmp_path, gpus__source="lots")
    with pytest.raises(InvalidSetting, match="an earlier start"):
        load_settings(None, tmp_path, {}, {})


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    options = StartOptions({"gpus.source": FOUR}, {"gpus.source": SettingAtStart(FOUR.text, "--gpus")})
    (tmp_path / "start.json").write_bytes(options.encoded())
    assert last_start(tmp_path) == options
    assert last_start(tmp_path / "none") == StartOptions()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"flags": {"a": 1}}', '{"flags": {}, "settings": []}'])
def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "start.json").write_text(text)
    with pytest.raises(MalformedConfig) as raised:
        last_start(tmp_path)
    assert "--forget" in raised.value.hint


def test_a_start_keeps_the_flags_before_it_but_for_where_it_listens() -> None:
    first = StartOptions().followed_by(
        {"gpus.source": FOUR, "cluster.listen": Flag("10.0.0.1", "--listen 1")}, {}, False
    )
    assert first.flags == {"gpus.source": FOUR}
    port = {"cluster.base_port": Flag("9000", "--port 9000")}
    assert first.followed_by(port, {}, False).flags == {**first.flags, **port}
    assert first.followed_by(port, {}, True).flags == port


def test_what_is_not_as_at_the_last_start_is_said_unless_a_flag_says_it_now() -> None:
    before = StartOptions(
        {}, {"cluster.host_name": SettingAtStart("box", "ACTORGRID_CLUSTER__HOST_NAME"), "a.b": SettingAtStart(1, "x")}
    )
    assert before.differences(set(), before.settings) == []
    said = before.differences({"a.b"}, {"a.b": SettingAtStart(2, "--set a.b")})
    assert said == [
        'cluster.host_name is at its default; at the last start it was "box" (ACTORGRID_CLUSTER__HOST_NAME)'
    ]
    assert StartOptions().differences(set(), {"a.b": SettingAtStart(2, "file")}) == []
    assert json.loads(before.encoded())["format"] == 1
