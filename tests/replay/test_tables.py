"""CSV files: columns by map, units, packed files, and errors that say where."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.errors import BadRequest
from actorgrid.replay import tables
from actorgrid.replay.tables import check_map_is_used, parse_map, read_nodes, read_tasks

SAMPLES = Path(__file__).parent / "samples"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def keep(*lines: str, name: str = "tasks.csv") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return keep


def test_nodes_are_read_by_a_map() -> None:
    columns = parse_map(["host=name", "cores=cpus", "ram_gib=memory_gib", "devices=gpu_count", "kind=gpu_model"])
    first, _, last = read_nodes(SAMPLES / "nodes.csv", columns)
    assert (first.name, first.cpu_milli, first.memory_mib, first.gpu_count, first.gpu_model) == (
        "a",
        16_000,
        65_536,
        2,
        "T4",
    )
    assert last.gpu_milli == 8000


def test_tasks_are_read_by_a_map_with_dates_shares_and_models() -> None:
    names = {"job": "id", "cores": "cpus", "ram_gib": "memory_gib", "kind": "gpu_models", "arrived": "submit_at"}
    names |= {"seconds": "duration_s", "team": "tenant", "until": "deadline_at"}
    columns = parse_map([f"{column}={field}" for column, field in names.items()])
    one, two, three, four = read_tasks(SAMPLES / "jobs.csv", columns)
    assert (one.gpu_count, one.gpu_milli, one.tenant) == (1, 500, "red")
    assert two.gpu_models == ("A10", "A100") and two.deadline_s is None
    assert (three.gpu_count, three.gpu_milli, three.total_gpu_milli) == (4, 1000, 4000)
    assert three.submit_s is not None and one.submit_s is not None and three.submit_s - one.submit_s == 120
    assert one.deadline_s == one.submit_s + 1800 and one.deadline_kind == "strict"
    assert four.gpu_count == 0 and four.duration_s == 60


def test_tasks_come_by_arrival_whatever_the_order_of_the_file(write: Write) -> None:
    path = write("id,gpu_count,submit_s", "late,1,20", "early,1,10")
    assert [task.id for task in read_tasks(path)] == ["early", "late"]


def test_units_are_told_by_the_field(write: Write) -> None:
    path = write("gpu_count,in_min,in_h,in_ms,allowed", "1,2,3,5000,4")
    (task,) = read_tasks(path, {"in_min": "submit_min", "in_h": "duration_h", "allowed": "allowed_min"})
    assert (task.submit_s, task.duration_s, task.deadline_s) == (120, 10_800, 360)


def test_the_openb_headings_are_known_without_a_map(write: Write) -> None:
    nodes = write("sn,cpu_milli,memory_mib,gpu,model", "n0,64000,262144,2,P100", name="nodes.csv")
    tasks = write(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time", "p,1,2,1,460,,5,9"
    )
    assert read_nodes(nodes)[0].gpu_model == "P100"
    (task,) = read_tasks(tasks)
    assert (task.gpu_milli, task.submit_s, task.duration_s) == (460, 5, 4)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_packed_files_are_read_as_they_are(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tasks.csv{suffix}"
    opener = gzip.open if suffix == ".gz" else lzma.open
    with opener(path, "wt") as stream:
        stream.write("gpu_count\n3\n")
    assert read_tasks(path)[0].gpu_count == 3


@pytest.mark.parametrize(
    ("heading", "line", "words"),
    [
        ("gpu_count", "two", ["line 2", "'gpu_count'", "not a number", "'two'"]),
        ("gpu_count", "1.5", ["line 2", "'gpu_count'", "not a whole number"]),
        ("gpu_count", "-1", ["line 2", "'gpu_count'", "not an amount"]),
        ("gpu_count", "nan", ["line 2", "'gpu_count'", "not an amount"]),
        ("gpus", "1.5", ["line 2", "'gpus'", "share"]),
        ("gpu_count,gpu_milli", "1,0", ["line 2", "'gpu_milli'", "share of nothing"]),
        ("gpu_count,gpu_milli", "1,1001", ["line 2", "'gpu_milli'", "1000"]),
        ("gpu_count,submit_at", "1,yesterday", ["line 2", "'submit_at'", "not a date", "ISO 8601"]),
        ("gpu_count,submit_s,end_s", "1,5,4", ["line 2", "'end_s'", "ends before it arrives"]),
        ("gpu_count,steps,model_type", "1,5,GPT-9", ["line 2", "'model_type'", "no throughput"]),
        ("gpu_count,deadline_kind", "1,maybe", ["line 2", "'deadline_kind'", "strict"]),
        ("gpu_count,gang", "1,0", ["line 2", "'gang'", "1 to 4096"]),
        ("gpu_count,memory_mib", "1,1e30", ["line 2", "'memory_mib'", "too large"]),
        ("gpu_count,priority", "1", ["line 2", "column is missing"]),
    ],
)
def test_an_error_says_file_line_column_what_was_found_and_what_to_try(
    write: Write, heading: str, line: str, words: list[str]
) -> None:
    path = write(heading, line)
    with pytest.raises(BadRequest) as caught:
        read_tasks(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)
    assert caught.value.hint


def test_the_line_is_that_of_the_file_also_after_quoted_line_breaks(write: Write) -> None:
    path = write("id,gpu_count", '"a', 'b",1', "c,x")
    with pytest.raises(BadRequest, match="line 4"):
        read_tasks(path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["gpu_count"], "lists no tasks"),
        ([""], "is empty"),
        (["cpu,memory", "1,2"], "no column for gpu_count or gpus"),
    ],
)
def test_a_file_without_tasks_is_refused(write: Write, lines: list[str], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read_tasks(write(*lines))


def test_two_nodes_of_one_name_are_refused_with_both_lines(write: Write) -> None:
    with pytest.raises(BadRequest, match=r"line 4.*is on line 2"):
        read_nodes(write("name,gpu_count", "a,1", "b,1", "a,2"))


def test_a_file_that_is_not_there_or_not_text_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="there is no file"):
        read_tasks(tmp_path / "none.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"gpu_count\n\xff\xfe\n")
    with pytest.raises(BadRequest, match="UTF-8"):
        read_tasks(binary)
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(b"gpu_count\n" + b"1\n" * 10_000)[:-20])
    with pytest.raises(BadRequest, match="cannot be read"):
        read_tasks(torn)


def test_rows_are_bounded(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_MAX", 2)
    with pytest.raises(BadRequest, match="more than 2 rows"):
        read_tasks(write("gpu_count", "1", "1", "1"))


def test_a_map_is_checked_before_any_file_is_read(write: Write) -> None:
    with pytest.raises(BadRequest, match="does not map a column"):
        parse_map(["gpus"])
    with pytest.raises(BadRequest, match="there is no field 'gpuz'") as caught:
        parse_map(["gpus=gpuz"])
    assert "gpu_count" in caught.value.hint
    with pytest.raises(BadRequest, match="no file has a column 'gpu_cont'") as caught:
        check_map_is_used({"gpu_cont": "gpu_count"}, [write("gpu_count", "1")])
    assert "gpu_count" in caught.value.hint


def test_two_columns_for_one_field_are_refused(write: Write) -> None:
    with pytest.raises(BadRequest, match="two columns are gpu_count"):
        read_tasks(write("a,b", "1,2"), {"a": "gpu_count", "b": "gpu_count"})


def test_a_map_wins_over_a_heading_of_the_same_meaning(write: Write) -> None:
    (task,) = read_tasks(write("gpu_count,really", "1,2"), {"really": "gpu_count"})
    assert task.gpu_count == 2
