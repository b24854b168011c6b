"""However many come to the join port, a minute of it is a few lines of the log."""

from actorgrid.actors.security.join_log import LINES_MAX, PERIOD_S, JoinLog


def test_lines_are_bounded_and_what_was_left_out_is_counted() -> None:
    notes = JoinLog()
    said = [notes.note(second / 10, f"garbage {second}") for second in range(500)]
    assert [line for line in said if line] == [f"garbage {number}" for number in range(LINES_MAX)]
    assert notes.note(PERIOD_S, "more") == f"more (and {500 - LINES_MAX} more of such before it)"
    assert notes.note(PERIOD_S + 1, "again") == "again"
