"""Timelines: read from the profiler's files to the nanosecond, refused where they are none, written for Perfetto."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.cli.main import cli
from actorgrid.errors import InvalidTimeline, NotFound
from actorgrid.kernel_timeline import kineto
from actorgrid.kernel_timeline.cupti_collector import readable_name
from actorgrid.kernel_timeline.kernel_events import KernelEvent, KernelTimeline, device_busy, totals
from actorgrid.kernel_timeline.kineto import read_kineto
from actorgrid.kernel_timeline.perfetto_export import perfetto_json

BASE = 1_764_158_400_000_000_000


def record(category: str, name: str, ts: str, dur: str, **more: Any) -> str:
    arguments = more.pop("args", {})
    fields = {"ph": "X", "cat": category, "name": name, "pid": 4711, "tid": 12, **more}
    head = json.dumps(fields)[:-1]
    return f'{head}, "ts": {ts}, "dur": {dur}, "args": {json.dumps(arguments)}}}'


DEVICE = {"device": 0, "stream": 7}
RECORDS = (
    record("cpu_op", "aten::mm", "100.001", "50.25"),
    record("cuda_runtime", "cudaLaunchKernel", "110.5", "3.125", args={"correlation": 41}),
    record("kernel", "gemm", "120.345", "900.002", pid=0, tid=7, args={**DEVICE, "correlation": 41}),
    record("gpu_memcpy", "Memcpy HtoD", "90.1", "5", pid=0, tid=7, args={**DEVICE, "bytes": 4096, "correlation": 40}),
    record("kernel", "gemm", "1500", "1000.5", pid=0, tid=7, args={**DEVICE, "correlation": 42}),
    record("kernel", "relu", "1600", "100", pid=0, tid=9, args={"device": 0, "stream": 9, "correlation": 43}),
)
REST = (
    '{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}',
    '{"ph": "s", "id": 41, "pid": 4711, "tid": 12, "ts": 110.5, "cat": "ac2g", "name": "ac2g"}',
    '{"ph": "X", "cat": "Trace", "name": "Iteration", "pid": "Spans", "tid": "PyTorch", "ts": 1, "dur": 2}',
)


def document(*records: str, base: str = str(BASE)) -> str:
    return f'{{"schemaVersion": 1, "baseTimeNanoseconds": {base}, "traceEvents": [{", ".join(records)}]}}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.json"
    path.write_text(document(*RECORDS, *REST))
    return path


def test_times_are_kept_to_the_nanosecond(file: Path) -> None:
    timeline = read_kineto(file)
    assert (timeline.source, timeline.dropped) == ("rank0", 0)
    assert [event.start_ns - BASE for event in timeline.events] == [
        90_100,
        100_001,
        110_500,
        120_345,
        1_500_000,
        1_600_000,
    ]
    gemm = timeline.events[3]
    assert gemm == KernelEvent("gemm", "kernel", BASE + 120_345, 900_002, 0, 7, 0, 7, 41, None)
    assert timeline.events[0].n_bytes == 4096
    assert [event.kind for event in timeline.events] == ["copy", "operator", "call", "kernel", "kernel", "kernel"]


@given(ns=st.integers(0, 2**60), duration=st.integers(0, 2**50))
def test_no_nanosecond_is_lost_on_the_way_to_perfetto_and_back(ns: int, duration: int) -> None:
    event = KernelEvent("k", "kernel", ns, duration, 1, 3, 0, 3)
    later = KernelEvent("k", "kernel", ns + duration, 1, 1, 3, 0, 3)
    trace = json.loads("".join(perfetto_json([KernelTimeline("a", [event, later])])), parse_float=Decimal)
    first, second = (each for each in trace["traceEvents"] if each["ph"] == "X")
    assert trace["baseTimeNanoseconds"] + first["ts"] * 1000 == ns
    assert first["dur"] * 1000 == duration
    assert second["ts"] * 1000 == duration


def test_older_files_have_whole_times_and_no_base(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"traceEvents": [%s]}' % record("Kernel", "gemm", "1700000000000123", "7", args=DEVICE))  # noqa: UP031
    (event,) = read_kineto(path).events
    assert (event.start_ns, event.duration_ns) == (1_700_000_000_000_123_000, 7000)


def test_packed_files_are_read_too(file: Path, tmp_path: Path) -> None:
    packed = tmp_path / "rank1.json.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    timeline = read_kineto(packed)
    assert (timeline.source, len(timeline.events)) == ("rank1", 6)


@pytest.mark.parametrize(
    ("ts", "dur"),
    [
        ("-9e30", "1"),
        ("1e300", "1"),
        ("1", "-1"),
        ("null", "1"),
        ('"1"', "1"),
        ("true", "1"),
        ("1", "[]"),
        ("1e-999999", "{}"),
    ],
)
def test_an_event_without_a_sensible_time_is_dropped_and_counted(tmp_path: Path, ts: str, dur: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(document(record("kernel", "gemm", ts, dur, args=DEVICE), *RECORDS))
    timeline = read_kineto(path)
    assert (len(timeline.events), timeline.dropped) == (6, 1)


def test_what_has_other_types_than_it_should_is_no_crash(tmp_path: Path) -> None:
    odd = (
        *(
            "17",
            "null",
            '"text"',
            "[]",
            '{"ph": "X"}',
            '{"ph": "X", "cat": ["kernel"]}',
            '{"ph": ["X"], "cat": "kernel"}',
        ),
        '{"ph": "X", "cat": "kernel", "name": 7, "ts": 1, "dur": 1, "args": 7}',
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": "x", "args": {"device": "0"}}',
        '{"ph": "X", "cat": "cpu_op", "name": "k", "ts": 1, "dur": 1, "pid": [], "tid": 1e99, "args": null}',
    )
    path = tmp_path / "odd.json"
    path.write_text(document(*odd))
    timeline = read_kineto(path)
    assert ([event.name for event in timeline.events], timeline.dropped) == (["k"], 2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no JSON"),
        (b"\x1f\x8bnothing", "no timeline"),
        (b"[1, 2]", "no traceEvents"),
        (b'{"traceEvents": 7}', "no traceEvents"),
        (b'{"traceEvents": [], "baseTimeNanoseconds": "now"}', "no time"),
        (b'{"traceEvents": [], "baseTimeNanoseconds": 99999999999999999999}', "no time"),
        (b'{"traceEvents": [NaN]}', "no number"),
        (b"[" * 200_000, "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
    ],
)
def test_what_is_no_timeline_is_refused_with_the_reason(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "none.json"
    path.write_bytes(content)
    with pytest.raises(InvalidTimeline, match=why):
        read_kineto(path)


def test_bounds_are_kept(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound):
        read_kineto(tmp_path / "nowhere.json")
    with pytest.raises(InvalidTimeline):
        read_kineto(tmp_path)
    monkeypatch.setattr(kineto, "EVENTS_MAX", 3)
    with pytest.raises(InvalidTimeline, match="at most 3"):
        read_kineto(file)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(bytes(1 << 20)))
    monkeypatch.setattr(kineto, "FILE_BYTES_MAX", 1 << 10)
    with pytest.raises(InvalidTimeline, match="larger"):
        read_kineto(bomb)


def test_what_ran_beside_something_else_counts_once(file: Path) -> None:
    timelines = [read_kineto(file)]
    (busy,) = device_busy(timelines)
    assert busy["busy_ns"] == 5000 + 900_002 + 1_000_500
    assert busy["span_ns"] == 2_500_500 - 90_100
    (gemm, *_) = totals(timelines)
    assert (gemm["name"], gemm["count"], gemm["total_ns"], gemm["max_ns"]) == ("gemm", 2, 1_900_502, 1_000_500)
    assert device_busy([KernelTimeline("empty")]) == totals([]) == []


def test_perfetto_gets_a_track_for_each_stream_and_flows_from_calls(file: Path) -> None:
    trace = json.loads("".join(perfetto_json([read_kineto(file, "a"), read_kineto(file, "b")])))
    names = {each["pid"]: each["args"]["name"] for each in trace["traceEvents"] if each["name"] == "process_name"}
    assert sorted(names.values()) == ["a: GPU 0", "a: host, process 4711", "b: GPU 0", "b: host, process 4711"]
    ends = [each for each in trace["traceEvents"] if each["ph"] in "sf"]
    assert [(each["ph"], each["id"], names[each["pid"]]) for each in ends] == [
        ("s", 1, "a: host, process 4711"),
        ("f", 1, "a: GPU 0"),
        ("s", 2, "b: host, process 4711"),
        ("f", 2, "b: GPU 0"),
    ]
    assert json.loads("".join(perfetto_json([])))["traceEvents"] == []


def test_names_of_kernels_are_as_people_wrote_them() -> None:
    assert readable_name("_ZN2at6native4fillEi") == "at::native::fill(int)"
    assert readable_name("nvjet_sm90_tst") == "nvjet_sm90_tst"
    assert readable_name("_Znonsense") == "_Znonsense"
    assert len(readable_name("x" * 10_000)) == 4096


def test_a_file_of_a_real_profiler_is_read() -> None:
    timeline = read_kineto(Path(__file__).parent / "recorded" / "kineto_h100.json")
    assert timeline.dropped == 0
    kinds = Counter(event.kind for event in timeline.events)
    assert (kinds["kernel"], kinds["set"], kinds["copy"], kinds["operator"] > 5, kinds["call"] > 5) == (
        5,
        2,
        1,
        True,
        True,
    )
    on_device = [event for event in timeline.events if event.device is not None]
    calls = {event.correlation for event in timeline.events if event.kind == "call"}
    assert {event.correlation for event in on_device} <= calls
    products = [event.duration_ns for event in on_device if event.name.startswith("nvjet")]
    assert len(products) == 2 and all(150_000 < duration < 200_000 for duration in products)
    (copy,) = (event for event in on_device if event.kind == "copy")
    assert copy.n_bytes == 4 << 22
    assert len([line for line in perfetto_json([timeline])]) > len(timeline.events)


def test_the_command_shows_and_exports(file: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["timeline", "show", str(file)])
    assert shown.exit_code == 0
    assert (
        "gemm" in shown.output and "1.901 ms" in shown.output and "rank0: GPU 0 busy 79.1 % of 2.410 ms" in shown.output
    )
    told = json.loads(CliRunner().invoke(cli, ["timeline", "show", str(file), "--top", "1", "--json"]).output)
    assert (told["totals"][0]["name"], len(told["totals"]), told["names"], told["dropped"]) == ("gemm", 1, 5, 0)
    out = tmp_path / "trace.json"
    done = CliRunner().invoke(cli, ["timeline", "export", str(file), "--out", str(out), "--json"])
    assert json.loads(done.output) == {"file": str(out), "events": 6, "dropped": 0}
    assert len(json.loads(out.read_text())["traceEvents"]) > 6
    again = CliRunner().invoke(cli, ["timeline", "export", str(file), "--out", str(out)])
    assert again.exit_code == 2 or "--force" in str(again.exception)
