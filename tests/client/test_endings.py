"""How an end is said."""

from __future__ import annotations

import pytest

from actorgrid.endings import LAST_CHARS, crash_of, end_of, for_want_of_memory, how_it_ended, last_lines
from actorgrid.errors import ActorGridError, TaskTimedOut, error_from_dict


@pytest.mark.parametrize(
    ("code", "number", "said"),
    [(3, None, "exit status 3"), (None, 11, "killed by SIGSEGV (signal 11)"), (None, None, "gone")],
)
def test_an_end_names_its_signal_or_its_status(code: int | None, number: int | None, said: str) -> None:
    assert how_it_ended(code, number) == said
    assert how_it_ended(None, 99) == "killed by signal 99"


def test_the_last_words_are_the_last_lines_and_of_a_crash_its_first() -> None:
    assert last_lines("a\n\nb\nc\n", lines=2) == "b | c"
    assert last_lines("") == "" and len(last_lines("x" * 10_000)) == LAST_CHARS + 1
    crash = (
        "noise\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File a\n"
        + "  File b\n" * 9
    )
    assert last_lines(crash, lines=2) == "Fatal Python error: Aborted | File a"


OF_A_WORKER = """Thread 0x2 (most recent call first):
  File "/usr/lib/python3/threading.py", line 1 in run

Current thread 0x1 (most recent call first):
  File "/usr/lib/python3/ctypes/__init__.py", line 519 in string_at
  File "/home/ann/train.py", line 3 in load
  File "/site-packages/actorgrid/actors/work/worker.py", line 426 in _run_one
  File "<string>", line 1 in <module>

Extension modules: one, two (total: 2)
"""


def test_of_a_crash_the_thread_that_crashed_is_told_without_what_is_not_the_users() -> None:
    frames = [
        'File "/usr/lib/python3/ctypes/__init__.py", line 519 in string_at',
        'File "/home/ann/train.py", line 3 in load',
    ]
    headline = "Fatal Python error: Segmentation fault"
    assert crash_of(f"noise\n{headline}\n\n{OF_A_WORKER}") == [headline, *frames]
    assert crash_of(f"n error: Segmentation fault\n\n{OF_A_WORKER}") == frames  # its beginning was not read
    assert crash_of(f"{OF_A_WORKER}\n{headline}\n") == [headline]
    assert crash_of("a task that failed\n") == []
    assert last_lines(OF_A_WORKER) == " | ".join(frames)


def test_what_is_kept_of_a_crash_is_where_it_was_and_else_the_end() -> None:
    assert end_of("short", 100) == "short"
    assert end_of("x" * 200 + "end", 10) == "xxxxxxxend"
    assert end_of("noise " * 100 + "\n" + OF_A_WORKER, 200).startswith('File "/usr/lib/python3/ctypes')


def test_a_time_limit_is_the_timeout_that_python_knows() -> None:
    error = error_from_dict(TaskTimedOut("too long", asked="2 s", hint="more").to_dict())
    assert isinstance(error, TimeoutError) and isinstance(error, ActorGridError)
    assert str(error) == "too long; asked: 2 s; try: more"


def test_an_end_by_sigkill_names_the_want_of_memory_that_the_kernel_counted() -> None:
    assert for_want_of_memory(0) == ""
    assert for_want_of_memory(1).startswith(
        ", most likely for want of memory (the kernel killed a process of this host"
    )
    assert "3 processes" in for_want_of_memory(3)
