"""Output of several members in one stream."""

from __future__ import annotations

import io
import threading

from actorgrid.cli.ranks import LINE_MAX, Labelled, Ranks, members_of


def test_pieces_of_lines_are_kept_until_the_line_is_whole() -> None:
    target = io.BytesIO()
    lock = threading.Lock()
    first, second = Labelled(target, 0, lock), Labelled(target, 11, lock)
    first.write(b"one ")
    second.write(b"two\nthr")
    first.write(b"half\n\n")
    second.end()
    assert target.getvalue() == b"[11] two\n[0] one half\n[0] \n[11] thr\n"


def test_a_line_without_an_end_does_not_take_all_memory() -> None:
    target = io.BytesIO()
    Labelled(target, 0, threading.Lock()).write(b"x" * (LINE_MAX + 5))
    assert target.getvalue() == b"[0] " + b"x" * LINE_MAX + b"\n"


def test_every_member_has_each_stream() -> None:
    ranks = Ranks(2, {"stdout": io.BytesIO(), "stderr": io.BytesIO()})
    assert sorted(ranks.labelled) == [(0, "stderr"), (0, "stdout"), (1, "stderr"), (1, "stdout")]
    assert (members_of({"resources": {"gang": 3}}), members_of({})) == (3, 1)
