"""A model over inputs, in batches: one that a function of the user's makes, or a service of the cluster."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from actorgrid.errors import InvalidWork

from .base import WorkArguments, WorkPlan, WorkType
from .service_inference import ServiceQuestion, ask_service
from .targets import Target, find_target


class InferenceArguments(WorkArguments):
    """A model and its inputs."""

    model: Target | None = Field(
        default=None, description="called without arguments, it gives a function of a batch (a list) of inputs"
    )
    service: str | None = Field(
        default=None, max_length=253, description="a service of the cluster, instead of a model: inputs are texts"
    )
    inputs: list[Any] = Field(min_length=1, max_length=100_000)
    batch_size: int = Field(default=32, ge=1, le=100_000, description="of a service: requests at once, 64 at most")
    ask: Literal["chat", "complete", "embed"] = Field(default="chat", description="what the service is to do with each")
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000, description="of each answer of a service")
    temperature: float | None = Field(default=None, ge=0, le=2)
    seed: int | None = None
    url: str = Field(
        default="",
        max_length=500,
        description="where the service is served, .../v1; else by the host that runs the work",
    )
    key_env: str = Field(
        default="", max_length=100, description="the variable with the API key, where the work runs and one is needed"
    )


class Inference(WorkType):
    """Runs a model."""

    name = "machine_learning_inference"
    summary = "a model of yours, or a service of the cluster, over a list of inputs"
    arguments = InferenceArguments

    def plan(self, arguments: InferenceArguments) -> WorkPlan:
        """Run it in a worker that may have the model loaded from before, or ask a service there. Raises InvalidWork."""
        if (arguments.service is None) == (arguments.model is None):
            raise InvalidWork(
                "name a model or a service, and not both",
                asked=f"model={arguments.model}, service={arguments.service}",
                hint="model=package.module:function, or service=NAME as actorgrid services lists them",
                paths=["service"],
            )
        if arguments.model is not None:
            return WorkPlan(infer, (arguments.model, arguments.inputs, arguments.batch_size))
        wrong = [f"inputs.{number}" for number, each in enumerate(arguments.inputs) if not isinstance(each, str)]
        if wrong:
            raise InvalidWork("what a service is asked about is text", found=", ".join(wrong[:5]), paths=wrong[:5])
        said = {name: getattr(arguments, name) for name in ("max_tokens", "temperature", "seed")}
        parameters = {name: value for name, value in said.items() if value is not None and arguments.ask != "embed"}
        question = ServiceQuestion(str(arguments.service), arguments.ask, parameters, arguments.url, arguments.key_env)
        # It waits for answers nearly all the time.
        options = {"cpus": 0.1}
        return WorkPlan(ask_service, (question, arguments.inputs, arguments.batch_size), options=options)


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
