"""Turns of the learners to be sent news: all of them while that is cheap, else so many a tick, in turn.

A cluster has three or five voters and up to thousands of learners. Told of every commit at once, they would cost their
leader more than all its other work. So a tick has a budget of sends to learners. While it lasts, news go out at once;
then they gather, and the next tick goes on with who is next: each message carries more, and their number a second is
bounded. Whoever waits for an entry is told out of turn (``Leadership.hurry``), within no budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Turns:
    """Whose turn among the learners it is. *a_tick*: how many learners may be sent news in a tick."""

    __slots__ = ("_a_tick", "_at", "_budget", "_left", "nodes")

    def __init__(self, a_tick: int, nodes: Iterable[int]) -> None:
        self.nodes = tuple(nodes)
        self._a_tick = self._budget = a_tick
        self._at = 0
        self._left = len(self.nodes)

    @property
    def due(self) -> bool:
        """Whether somebody may be told something now."""
        return self._left > 0 and self._budget > 0

    @property
    def budget_left(self) -> bool:
        """Whether one more learner may be sent news in this tick."""
        return self._budget > 0

    def reset(self, nodes: Iterable[int]) -> None:
        """Begin anew with *nodes* as the learners."""
        self.nodes = tuple(nodes)
        self._at = 0
        self.news()

    def news(self) -> None:
        """Look at every learner once from now on: there is something to tell."""
        self._left = len(self.nodes)

    def tick(self) -> None:
        """Take one tick: the budget is full again."""
        self._budget = self._a_tick

    def spend(self) -> None:
        """Take one from the budget: a learner was sent something."""
        self._budget -= self._budget > 0

    def __iter__(self) -> Iterator[int]:
        """The learners whose turn it is, as long as there is news and budget."""
        while self.due:
            node = self.nodes[self._at]
            self._at = (self._at + 1) % len(self.nodes)
            self._left -= 1
            yield node
