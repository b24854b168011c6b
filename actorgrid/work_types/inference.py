"""A model over inputs, in batches. A function of the user's makes the model; the process that called it keeps it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import Field

from actorgrid.errors import InvalidWork, NotSupported

from .base import WorkArguments, WorkPlan, WorkType
from .targets import Target, find_target


class InferenceArguments(WorkArguments):
    """A model and its inputs."""

    model: Target | None = Field(
        default=None, description="called without arguments, it gives a function of a batch (a list) of inputs"
    )
    service: str | None = Field(
        default=None, max_length=100, description="a service of the cluster, instead of a model"
    )
    inputs: list[Any] = Field(min_length=1, max_length=100_000)
    batch_size: int = Field(default=32, ge=1, le=100_000)


class Inference(WorkType):
    """Runs a model."""

    name = "machine_learning_inference"
    summary = "a model of yours over a list of inputs, in batches"
    arguments = InferenceArguments

    def plan(self, arguments: InferenceArguments) -> WorkPlan:
        """Run it in a worker that may have the model loaded from before. Raises NotSupported for a service."""
        if arguments.service is not None or arguments.model is None:
            raise NotSupported(
                "there are no services yet that could be asked",
                asked=f"service={arguments.service}",
                hint="name a function that makes the model: model=package.module:function",
            )
        return WorkPlan(infer, (arguments.model, arguments.inputs, arguments.batch_size))


def infer(model: str, inputs: list[Any], batch_size: int) -> list[Any]:
    """What the model gives for each input. Raises InvalidWork where it does not give one for each."""
    run = _loaded(model)
    outputs: list[Any] = []
    for first in range(0, len(inputs), batch_size):
        batch = inputs[first : first + batch_size]
        given = run(batch)
        found = given.tolist() if hasattr(given, "tolist") else list(given)
        if len(found) != len(batch):
            raise InvalidWork(
                f"{model} gives one output for each input", asked=f"{len(batch)} inputs", found=f"{len(found)} outputs"
            )
        outputs += found
    return outputs


@lru_cache(maxsize=4)
def _loaded(model: str) -> Any:
    """The model, as its function made it: once in a process, which serves others after this."""
    return find_target(model)()
