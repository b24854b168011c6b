"""A graph that was submitted, for asyncio: the same verbs, awaited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .awaited import Awaiting, awaited
from .graph_run import GraphRun, StepRun

if TYPE_CHECKING:
    from .dag import Step


class AsyncGraphRun(Awaiting[GraphRun]):
    """A graph on a cluster: every verb of GraphRun, awaited; ``await run.step(step)`` for ``run[step]``.

    Each wait holds one thread of the loop's default executor.
    """

    def __init__(self, run: GraphRun) -> None:
        self.sync = run
        self.id = run.id

    def __repr__(self) -> str:
        return repr(self.sync)

    look = awaited(GraphRun.look)
    steps = awaited(GraphRun.steps)
    wait = awaited(GraphRun.wait)
    cancel = awaited(GraphRun.cancel)
    retry = awaited(GraphRun.retry)
    result = awaited(GraphRun.result)

    async def step(self, step: Step[Any] | str) -> AsyncStepRun:
        """One step: ``await (await run.step(step)).result()``. Raises NotFound."""
        return AsyncStepRun(await asyncio.to_thread(self.sync.__getitem__, step))


class AsyncStepRun(Awaiting[StepRun]):
    """One step of a graph that was submitted."""

    def __init__(self, step: StepRun) -> None:
        self.sync = step
        self.number = step.number
        self.id = step.id

    def __repr__(self) -> str:
        return repr(self.sync)

    look = awaited(StepRun.look)
    result = awaited(StepRun.result)
