"""Sources, their order, and where each value comes from."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from actorgrid.configs.load import find_config_dir, load_settings
from actorgrid.configs.schema import FILES, Settings
from actorgrid.configs.variables import variable
from actorgrid.errors import MalformedConfig

from .conftest import Load

KEY = "work.max_isolation_s"


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    loaded = load_settings(None, tmp_path, {}, {})
    assert loaded.settings.model_dump() == Settings().model_dump()
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}
    assert list(loaded.origins) == Settings().keys()


def test_later_sources_win_over_earlier_ones(load: Load) -> None:
    files = {"cluster.yaml": "work:\n  max_isolation_s: 11\n"}
    dotenv = {".env": "ACTORGRID_WORK__MAX_ISOLATION_S=12\n"}
    environ = {"ACTORGRID_WORK__MAX_ISOLATION_S": "13"}
    found = [
        load().settings.get(KEY),
        load(files).settings.get(KEY),
        load(dotenv).settings.get(KEY),
        load(None, environ).settings.get(KEY),
        load(None, environ, {KEY: "14"}).settings.get(KEY),
    ]
    assert found == [10, 11, 12, 13, 14]


def test_each_value_knows_where_it_was_written(load: Load) -> None:
    loaded = load(
        {
            "cluster.yaml": "# a comment\nwork:\n  max_isolation_s: 11\n  pools:\n    general:\n      warm: 4\n",
            ".env": "\n# comment\n\nACTORGRID_WORK__ON_STOP=leave\n",
        },
        {"ACTORGRID_MONITORING__LOG_LEVEL": "debug"},
        {"cluster.base_port": "7500"},
    )
    shown = {key: str(origin) for key, origin in loaded.origins.items() if origin.kind != "default"}
    assert shown == {
        "work.max_isolation_s": "cluster.yaml:3",
        "work.pools.general.warm": "cluster.yaml:6",
        "work.on_stop": ".env:4 ACTORGRID_WORK__ON_STOP",
        "monitoring.log_level": "ACTORGRID_MONITORING__LOG_LEVEL",
        "cluster.base_port": "--set cluster.base_port",
    }
    assert loaded.settings.origin("work.max_isolation_s") == "cluster.yaml:3"
    assert loaded.settings.origin("work.kill_grace_s") == "default"


def test_a_live_change_is_remembered_as_the_origin(load: Load) -> None:
    settings = load({"cluster.yaml": "work:\n  kill_grace_s: 1\n"}).settings
    assert settings.set_live("work.kill_grace_s", "3") == 1
    assert (settings.get("work.kill_grace_s"), settings.origin("work.kill_grace_s")) == (3.0, "live")


def test_a_flag_of_its_own_is_named_as_it_was_written(tmp_path: Path) -> None:
    loaded = load_settings(None, tmp_path, {"cluster.base_port": "1"}, {}, {"cluster.base_port": "--port"})
    assert str(loaded.origins["cluster.base_port"]) == "--port"


def test_part_of_a_section_leaves_the_rest_of_its_defaults(load: Load) -> None:
    pools = load({"cluster.yaml": "work:\n  pools:\n    gpu_compute:\n      warm: 1\n"}).settings.work.pools
    assert (pools.gpu_compute.warm, pools.gpu_compute.max, pools.general.warm) == (1, 256, 2)


def test_an_empty_section_changes_nothing(load: Load) -> None:
    assert load({"cluster.yaml": "work:\ngpus:\n"}).settings.model_dump() == Settings().model_dump()


def test_an_empty_file_changes_nothing(load: Load) -> None:
    assert load({"cluster.yaml": "", "security.yaml": "# only words\n"}).config_dir is not None


def test_settings_survive_the_way_to_another_process(load: Load) -> None:
    settings = load({"cluster.yaml": "work:\n  kill_grace_s: 1\n"}).settings
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings and copy.origin("work.kill_grace_s") == "cluster.yaml:2"
    assert type(copy) is Settings


def test_two_loads_share_nothing(load: Load) -> None:
    first, second = load().settings, load().settings
    first.set_live("work.kill_grace_s", 1)
    assert second.get("work.kill_grace_s") == 5.0 == Settings().get("work.kill_grace_s")


def test_lists_are_written_in_yaml_and_in_json(load: Load) -> None:
    in_yaml = "gpus:\n  declared:\n  - {vendor: amd, model: MI300X, memory: 192GB, count: 2}\n"
    in_json = '[{"vendor": "amd", "model": "MI300X", "memory": "192GB", "count": 2}]'
    expected = load({"cluster.yaml": in_yaml}).settings.gpus.declared
    assert expected[0].memory == 192 * 10**9
    assert load(None, {"ACTORGRID_GPUS__DECLARED": in_json}).settings.gpus.declared == expected
    assert load(None, None, {"gpus.declared": in_json}).settings.gpus.declared == expected


def test_sizes_take_their_unit_everywhere(load: Load) -> None:
    assert load({"cluster.yaml": "work:\n  max_output_bytes: 3MiB\n"}).settings.work.max_output_bytes == 3 * 2**20
    assert load(None, {"ACTORGRID_WORK__MAX_OUTPUT_BYTES": "3kB"}).settings.work.max_output_bytes == 3000


def test_variables_that_are_no_settings_are_left_alone(load: Load) -> None:
    environ = {"ACTORGRID_URL": "http://h", "ACTORGRID_TOKEN": "t", "ACTORGRID_JOB_ID": "j", "PATH": "/bin"}
    assert {origin.kind for origin in load(None, environ).origins.values()} == {"default"}


def test_the_config_directory_is_the_named_one_else_the_one_beside_the_data(tmp_path: Path) -> None:
    named, data = tmp_path / "named", tmp_path / "data"
    named.mkdir()
    assert find_config_dir(None, data, {}) is None
    (data / "config").mkdir(parents=True)
    assert find_config_dir(None, data, {}) == data / "config"
    assert find_config_dir(None, data, {"ACTORGRID_CONFIG": str(named)}) == named
    assert find_config_dir(named, data, {"ACTORGRID_CONFIG": str(data)}) == named


def test_a_named_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedConfig, match="there is no directory") as caught:
        load_settings(tmp_path / "nowhere", None, {}, {})
    assert "cluster.yaml" in caught.value.hint


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "cluster.name": st.text(st.characters(codec="ascii", exclude_categories=("C",)), max_size=64),
    "cluster.base_port": st.integers(0, 65531),
    "gpus.probe_interval_s": st.floats(0.5, 3600),
    "scheduling.policy": st.sampled_from(["completion", "fgd", "best_fit", "spread", "first_fit", "random"]),
    "scheduling.queue_max": st.integers(1, 10_000_000),
    "work.pools.cpu_intensive.max": st.integers(1, 4096),
    "work.max_output_bytes": st.integers(0, 2**60),
    "work.on_stop": st.sampled_from(["end", "leave"]),
    "security.metrics_need_token": st.booleans(),
    "monitoring.log_level": st.sampled_from(["debug", "info", "warning", "error"]),
    "performance.ledger_batch_max": st.integers(1, 65_536),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
@example({"work.max_output_bytes": 2**53 + 1})
def test_what_is_written_is_what_is_read_by_every_way(written: dict[str, Any]) -> None:
    trees: dict[str, dict[str, Any]] = {}
    for key, value in written.items():
        *path, name = key.split(".")
        place = trees.setdefault(FILES[path[0]], {})
        for part in path:
            place = place.setdefault(part, {})
        place[name] = value
    texts = {key: value if isinstance(value, str) else repr(value) for key, value in written.items()}
    with tempfile.TemporaryDirectory() as folder:
        for file, tree in trees.items():
            (Path(folder) / file).write_text(yaml.safe_dump(tree), encoding="utf-8")
        from_files = load_settings(folder, None, {}, {})
    by_variable = load_settings(None, "/nonexistent", {}, {variable(key): text for key, text in texts.items()})
    by_flag = load_settings(None, "/nonexistent", texts, {})
    for loaded in (from_files, by_variable, by_flag):
        assert {key: loaded.settings.get(key) for key in written} == written
        assert {key for key, origin in loaded.origins.items() if origin.kind != "default"} == set(written)
    assert from_files.settings.model_dump() == by_flag.settings.model_dump()
