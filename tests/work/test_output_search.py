"""The part of an output that somebody asks for: found where it lies, a bounded piece at a time."""

from __future__ import annotations

import re
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.links import output_search
from actorgrid.actors.links.output_search import last_lines, matching_lines, place_since
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.output_lines import PATTERN_CHARS_MAX, matcher
from actorgrid.actors.work.output_times import BYTES_MAX, OutputTimes, interval_s, offset_since
from actorgrid.errors import BadRequest

LINES = st.lists(st.sampled_from(["", "a", "ab", "b" * 9, "ccc", "ä", "a\rb"]), max_size=30)
PIECE = 64
"""Of the output, in place of half a MiB: many pieces of few lines."""


def made(tmp_path: Path, content: bytes, ended: bool = True) -> AttemptDir:
    directory = AttemptDir(tmp_path, "a.1")
    directory.create({})
    directory.stdout.write_bytes(content)
    if ended:
        directory.write_status({"reason": "exited"})
    return directory


def last(directory: AttemptDir, count: int, pattern: str, first: int = 0) -> bytes:
    """As the door does it: piece by piece from the end."""
    start = end = directory.output_size("stdout")
    while count and end > first:
        found = last_lines(directory, "stdout", first, end, count, pattern)
        start = found.offset if found.found else start
        count -= found.found
        assert found.end < end
        end = found.end
    return directory.read_output("stdout", start)


def matched(directory: AttemptDir, pattern: str) -> bytes:
    data, offset, size = b"", 0, directory.output_size("stdout")
    while offset < size:
        found = matching_lines(directory, "stdout", offset, size, pattern)
        assert found.end > offset
        data, offset = data + found.data, found.end
    return data


@given(LINES, st.booleans(), st.integers(0, 12), st.sampled_from(["", "a", "^a$", "b{3}", "ä|c"]))
@settings(max_examples=150, deadline=None)
def test_it_is_what_a_plain_search_through_the_file_finds(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], whole: bool, count: int, pattern: str
) -> None:
    content = "".join(line + "\n" for line in lines).encode()
    content = content if whole else content[:-1]
    rows = [line for line in re.split(rb"(?<=\n)", content) if line]
    chosen = [row for row in rows if re.search(pattern, row.decode().rstrip("\r\n"))]
    directory = made(tmp_path_factory.mktemp("work"), content)
    with patch.object(output_search, "SEARCH_BYTES", PIECE), patch.object(output_search, "LINES_MAX", 4):
        if pattern:
            assert matched(directory, pattern) == b"".join(chosen)
        found = last(directory, count, pattern)
    wanted = chosen[-count:] if count else []
    assert [row for row in re.split(rb"(?<=\n)", found) if row and row in wanted][:1] == wanted[:1]
    if not pattern:
        assert found == b"".join(wanted)


def test_no_question_looks_at_more_lines_than_a_host_has_time_for(tmp_path: Path) -> None:
    lines = output_search.LINES_MAX
    directory = made(tmp_path, b"\n" * (2 * lines))
    assert matching_lines(directory, "stdout", 0, None, "x").end == lines
    assert last_lines(directory, "stdout", 0, 2 * lines, 1, "x").end == lines
    assert last_lines(directory, "stdout", 0, 2 * lines, 1, "").offset == 2 * lines - 1


def test_a_line_longer_than_a_piece_is_looked_at_in_parts(tmp_path: Path) -> None:
    directory = made(tmp_path, b"x" * 200 + b"needle" + b"x" * 200 + b"\nshort\n")
    with patch.object(output_search, "SEARCH_BYTES", PIECE):
        found = matched(directory, "needle|short")
        assert b"needle" in found and found.endswith(b"short\n") and len(found) < 200
        assert last(directory, 1, "") == b"short\n"


def test_a_line_that_grows_is_told_when_it_is_whole(tmp_path: Path) -> None:
    directory = made(tmp_path, b"one\ntw", ended=False)
    found = matching_lines(directory, "stdout", 0, None, "one|two")
    assert (found.data, found.end) == (b"one\n", 4)
    assert matching_lines(directory, "stdout", 4, None, "two").end == 4
    directory.stdout.write_bytes(b"one\ntwo")
    directory.write_status({"reason": "exited"})
    assert matching_lines(directory, "stdout", 4, None, "two").data == b"two"


def test_no_pattern_takes_long() -> None:
    matches = matcher(r"(a+)+$|(a|a)*b{2}|(.*)*x")
    began = time.process_time()
    assert not matches(b"a" * 500_000 + b"!")
    assert time.process_time() - began < 2.0  # a backtracking search would not end in a lifetime


@pytest.mark.parametrize("pattern", [r"(a)\1", "a(?=b)", "(", "[z-a]", "((a{1000}){1000}){1000}", "x" * 1_001])
def test_what_is_no_pattern_is_refused_with_its_reason(pattern: str) -> None:
    with pytest.raises(BadRequest) as refused:
        matcher(pattern)
    assert refused.value.hint


def test_longest_pattern_is_taken() -> None:
    assert matcher("x" * PATTERN_CHARS_MAX)(b"x" * PATTERN_CHARS_MAX)


def test_times_find_where_later_output_begins(tmp_path: Path) -> None:
    directory = made(tmp_path, b"")
    times = OutputTimes(lambda: directory.open_times("stdout"))
    for offset, at in [(0, 100.0), (10, 100.5), (20, 101.0), (30, 130.0), (40, 131.5)]:
        times.note(offset, at)
    times.close()
    places = directory.read_times("stdout")
    assert len(places) == 4 * 16  # half a second later is not another place
    found = {since: offset_since(places, since, 50) for since in (99.0, 100.0, 101.5, 102.0, 129.0, 131.5, 133.0)}
    assert found == {99.0: 0, 100.0: 0, 101.5: 20, 102.0: 30, 129.0: 30, 131.5: 40, 133.0: 50}
    assert offset_since(places[:-5], 133.0, 50) == 50 and offset_since(b"", 133.0, 50) == 0


def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    directory = made(tmp_path, b"")
    times = OutputTimes(lambda: directory.open_times("stdout"))
    for offset, at in [(0, 500.0), (10, 200.0), (20, 210.0)]:
        times.note(offset, at)
    times.close()
    assert offset_since(directory.read_times("stdout"), 205.0, 30) == 20


def test_times_of_a_month_are_bounded() -> None:
    at, count = 0.0, 0
    while at < 31 * 86_400:
        at, count = at + interval_s(at), count + 1
    assert count * 16 < BYTES_MAX


def test_since_begins_with_a_whole_line(tmp_path: Path) -> None:
    directory = made(tmp_path, b"old\nhalf a line\nnew\n")
    times = OutputTimes(lambda: directory.open_times("stdout"))
    times.note(0, time.time() - 100)
    times.note(8, time.time() - 5)
    times.close()
    assert place_since(directory, "stdout", 30).offset == 4
    assert place_since(directory, "stdout", None).offset == 0
    assert place_since(directory, "stdout", 0.5).offset == 20
