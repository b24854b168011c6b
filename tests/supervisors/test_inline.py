"""The node of tests: timers and descriptors on the real clock."""

from __future__ import annotations

import os

from actorgrid.supervisors.inline import InlineNode


def test_descriptors_are_heard_though_timers_come_due_faster_than_they_are_called() -> None:
    node = InlineNode(real_time=True)
    reader, writer = os.pipe()
    heard: list[bytes] = []

    def again() -> None:
        node.after(0.0, again)

    node.watch(reader, lambda: heard.append(os.read(reader, 1)))
    again()
    os.write(writer, b"x")
    for _ in range(3):
        node.step()
    node.unwatch(reader)
    os.close(reader)
    os.close(writer)
    node._selector.close()
    assert heard == [b"x"]
