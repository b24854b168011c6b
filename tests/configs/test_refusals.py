"""Every refusal names the file and line, what was found, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from actorgrid.configs.files import MAX_FILE_BYTES
from actorgrid.configs.monitoring_section import MonitoringSection
from actorgrid.errors import ActorGridError, InvalidSetting, MalformedConfig, UnknownSetting

from .conftest import Load

# file, text, error, line, words of the message, words of the hint
REFUSALS = [
    ("cluster.yaml", "work:\n  max_isolation: 20\n", UnknownSetting, 2, "work.max_isolation", "work.max_isolation_s"),
    ("cluster.yaml", "wrk:\n  kill_grace_s: 2\n", UnknownSetting, 1, "section 'wrk'", "work"),
    ("cluster.yaml", "\nwork:\n  pools:\n    gpu:\n      warm: 1\n", UnknownSetting, 4, "work.pools.gpu", "gpu"),
    ("cluster.yaml", "work:\n  log_level: info\n", UnknownSetting, 2, "work.log_level", "belongs in monitoring.yaml"),
    ("monitoring.yaml", "monitoring:\n  otlp_endpoint: http://a.example\n", InvalidSetting, 2, "plain text", "4318"),
    ("security.yaml", "# x\nwork:\n  kill_grace_s: 1\n", UnknownSetting, 2, "section work", "move it to cluster.yaml"),
    ("cluster.yaml", "work:\n  kill_grace_s: 1\n  kill_grace_s: 2\n", MalformedConfig, 3, "twice", "remove one"),
    ("cluster.yaml", "work:\n  kill_grace_s: 1\nwork:\n  on_stop: end\n", MalformedConfig, 3, "twice", "remove one"),
    ("cluster.yaml", "work:\n  kill_grace_s: soon\n", InvalidSetting, 2, "work.kill_grace_s", "default 5.0"),
    ("cluster.yaml", "work:\n  kill_grace_s: -1\n", InvalidSetting, 2, "greater than or equal to 0", "SIGKILL"),
    ("cluster.yaml", "work:\n  kill_grace_s: .nan\n", InvalidSetting, 2, "work.kill_grace_s", "SIGKILL"),
    ("cluster.yaml", "work:\n  kill_grace_s: .inf\n", InvalidSetting, 2, "work.kill_grace_s", "SIGKILL"),
    ("cluster.yaml", "work:\n  kill_grace_s:\n", InvalidSetting, 2, "no value", "default 5.0"),
    ("cluster.yaml", "work:\n  on_stop: never\n", InvalidSetting, 2, "'end' or 'leave'", "orderly stop"),
    ("cluster.yaml", "gpus:\n  source: simulated\n", InvalidSetting, 2, "form", "simulated:8xH100-80GB"),
    ("cluster.yaml", "cluster:\n  bind: 0.0.0.0\n", InvalidSetting, 2, "TLS", "loopback"),
    ("cluster.yaml", "cluster:\n  bind: ''\n", InvalidSetting, 2, "TLS", "loopback"),
    ("cluster.yaml", "cluster:\n  bind: gpu1.example.org\n", InvalidSetting, 2, "TLS", "loopback"),
    ("cluster.yaml", "work:\n  pools:\n    general:\n      max: 1\n", InvalidSetting, 4, "more than max", "busy"),
    ("cluster.yaml", "sessions:\n  renew_s: 30\n", InvalidSetting, 2, "twice renew_s", "renews"),
    (
        "cluster.yaml",
        "gpus:\n  declared:\n  - vendor: amd\n    modl: MI300X\n    memory: 1GB\n",
        InvalidSetting,
        4,
        "gpus.declared.0.modl",
        "{vendor, model, memory, count}",
    ),
    ("cluster.yaml", "gpus:\n  declared:\n  - vendor: amd\n", InvalidSetting, 3, "field is needed", "{vendor, model"),
    ("cluster.yaml", "gpus:\n  declared: 8\n", InvalidSetting, 2, "valid list", "{vendor, model"),
    ("cluster.yaml", "gpus:\n  declared: &a\n  - *a\n", MalformedConfig, 2, "recursive", ""),
    ("cluster.yaml", "work: 3\n", MalformedConfig, 1, "work is a section", ""),
    ("cluster.yaml", "work:\n  pools: [1]\n", MalformedConfig, 2, "work.pools is a section", ""),
    ("cluster.yaml", "- work\n", MalformedConfig, 1, "holds sections", ""),
    ("cluster.yaml", "work:\n\tkill_grace_s: 1\n", MalformedConfig, 2, "not valid YAML", ""),
    ("cluster.yaml", "work:\n  on_stop: [end\n", MalformedConfig, 3, "not valid YAML", ""),
    ("cluster.yaml", "work: {}\n---\nwork: {}\n", MalformedConfig, 2, "not valid YAML", ""),
    ("cluster.yaml", "work:\n  on_stop: *missing\n", MalformedConfig, 2, "undefined alias", ""),
    ("cluster.yaml", "work:\n  <<: {on_stop: end}\n", MalformedConfig, 2, "merging", "write the settings out"),
    ("cluster.yaml", "work:\n  on_stop: !!python/name:os.system ''\n", MalformedConfig, 2, "not valid YAML", ""),
    ("cluster.yaml", "work:\n  ? [a]\n  : 1\n", MalformedConfig, 2, "name is expected", ""),
    ("cluster.yaml", "work:\n  on_stop: \x01\n", MalformedConfig, 2, "character", ""),
    (".env", "\nACTORGRID_WORK__KILL_GRACE=1\n", UnknownSetting, 2, "names no setting", "ACTORGRID_WORK__KILL_GRACE_S"),
    (".env", "# x\nACTORGRID_WORK__KILL_GRACE_S=x\n", InvalidSetting, 2, "work.kill_grace_s", "default 5.0"),
    (".env", "\n\nnonsense here\n", MalformedConfig, 3, "NAME=value", ""),
    (".env", "ACTORGRID_WORK__KILL_GRACE_S\n", MalformedConfig, 1, "NAME=value", ""),
    (".env", "ACTORGRID_TOKEN=secret\n", UnknownSetting, 1, "is no setting", "export it"),
    (".env", "EDITOR=vi\n", UnknownSetting, 1, "EDITOR", "settings are named like"),
    (
        ".env",
        "ACTORGRID_WORK__ON_STOP=end\nACTORGRID_WORK__ON_STOP=leave\n",
        MalformedConfig,
        2,
        "twice",
        "remove one",
    ),
    (".env", "ACTORGRID_GPUS__DECLARED=none\n", InvalidSetting, 1, "JSON", "[]"),
]


@pytest.mark.parametrize(
    ("file", "text", "kind", "line", "message", "hint"), REFUSALS, ids=[repr(row[1])[:60] for row in REFUSALS]
)
def test_a_wrong_line_is_refused_with_its_number(
    load: Load, tmp_path: Path, file: str, text: str, kind: type[ActorGridError], line: int, message: str, hint: str
) -> None:
    with pytest.raises(ActorGridError) as caught:
        load({file: text})
    error = caught.value
    assert type(error) is kind
    assert f"{tmp_path / file}, line {line}: " in error.message
    assert message in error.message and hint in error.hint
    assert error.exit_code == 2
    assert error.details["line"] == line and error.details["file"] == str(tmp_path / file)
    assert error.asked


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ACTORGRID_WORK__MAX_ISOLATION", "ACTORGRID_WORK__MAX_ISOLATION_S"),
        ("ACTORGRID_WORK_MAX_ISOLATION_S", "ACTORGRID_WORK__MAX_ISOLATION_S"),
        ("actorgrid_work__on_stop", "ACTORGRID_WORK__ON_STOP"),
        ("ACTORGRID_JOBS__QUEUE_MAX", "ACTORGRID_SCHEDULING__QUEUE_MAX"),
        ("ACTORGRID_DATADIR", "ACTORGRID_DATA_DIR"),
        ("ACTORGRID_FOO", "settings are named like"),
    ],
)
def test_a_misspelt_variable_is_refused_with_a_suggestion(load: Load, name: str, hint: str) -> None:
    with pytest.raises(UnknownSetting) as caught:
        load(None, {name: "1"})
    assert name in caught.value.message and hint in caught.value.hint


def test_a_wrong_value_in_a_variable_names_the_variable(load: Load) -> None:
    with pytest.raises(InvalidSetting, match=r"^ACTORGRID_WORK__ON_STOP: work.on_stop: "):
        load(None, {"ACTORGRID_WORK__ON_STOP": "never"})


def test_a_wrong_flag_is_named(load: Load) -> None:
    with pytest.raises(InvalidSetting, match=r"^--set work.on_stop: work.on_stop: "):
        load(None, None, {"work.on_stop": "never"})
    with pytest.raises(UnknownSetting) as caught:
        load(None, None, {"work.onstop": "end"})
    assert caught.value.hint == "did you mean work.on_stop?"


def test_a_file_that_would_be_ignored_is_refused(load: Load) -> None:
    with pytest.raises(MalformedConfig) as caught:
        load({"cluster.yml": ""})
    assert caught.value.hint == "rename it to cluster.yaml"


def test_a_file_in_another_encoding_is_refused_with_its_line(load: Load, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_bytes(b"cluster:\n  name: caf\xe9\n")
    with pytest.raises(MalformedConfig, match="line 2: not UTF-8"):
        load()


def test_a_huge_file_is_refused_unread(load: Load, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(MalformedConfig, match="larger than"):
        load()


def test_deep_nesting_is_refused(load: Load) -> None:
    with pytest.raises(MalformedConfig, match="nests too deeply"):
        load({"cluster.yaml": "gpus:\n  declared: " + "[" * 5000 + "]" * 5000})


def test_a_directory_in_place_of_a_file_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").mkdir()
    with pytest.raises(MalformedConfig, match="cannot read"):
        load()


@pytest.mark.parametrize(
    ("url", "plain", "what"),
    [
        ("http://ann:secret@127.0.0.1:4318", False, "no user, password or query"),
        ("https://collector.example/?token=secret", False, "no user, password or query"),
        ("http://collector.example:4318", False, "plain text"),
        ("http://10.0.0.5:4318", False, "plain text"),
        ("http://127.0.0.1.example.com:4318", False, "plain text"),
        ("ftp://127.0.0.1", True, "no URL of a collector"),
        ("http://127.0.0.1:99999", True, "no URL of a collector"),
        ("http://", True, "no URL of a collector"),
        ("http://[::1", True, "no URL of a collector"),
    ],
)
@pytest.mark.parametrize("key", ["otlp_endpoint", "otlp_metrics_endpoint"])
def test_collectors_are_reached_safely_and_settings_hold_no_secret(key: str, url: str, plain: bool, what: str) -> None:
    with pytest.raises(ValidationError, match=what) as caught:
        MonitoringSection(otlp_plain_http=plain, **{key: url})
    assert "secret@" not in str(caught.value.errors()[0]["msg"]) and "=secret" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://127.0.0.1:4318", False),
        ("http://[::1]:4318/otlp", False),
        ("http://localhost:4318", False),
        ("https://collector.example", False),
        ("http://collector.example:4318", True),
    ],
)
def test_collectors_that_may_be_named(url: str, plain: bool) -> None:
    assert MonitoringSection(otlp_plain_http=plain, otlp_endpoint=url).otlp_endpoint == url


def test_a_secret_in_a_url_is_not_shown_when_it_is_refused(load: Load) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load({"monitoring.yaml": "monitoring:\n  otlp_endpoint: https://ann:sesame@collector.example\n"})
    error = caught.value
    shown = f"{error.message} {error.asked} {error.found} {error.hint}"
    assert "(hidden)" in shown and "sesame" not in shown
