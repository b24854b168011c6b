"""How an end is said."""

from __future__ import annotations

import pytest

from actorgrid.endings import LAST_CHARS, for_want_of_memory, how_it_ended, last_lines
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
