"""A graph as people write it (YAML, JSON) and as it crosses the door: models, and the checked graph they make."""

from __future__ import annotations

import uuid
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from actorgrid.amounts import parse_bytes
from actorgrid.checkpoint_models import CheckpointRequest
from actorgrid.demand import Demand
from actorgrid.labels import LABELS_MAX, LABELS_TEXT
from actorgrid.models import (
    Annotations,
    EventWords,
    ExecText,
    Labels,
    OutputPath,
    Pool,
    RequestBody,
    Resources,
    Targets,
)
from actorgrid.notification_words import EVENTS, TARGETS_MAX, TARGETS_TEXT
from actorgrid.output_paths import OUTPUTS_MAX
from actorgrid.sizes import ANNOTATIONS_MAX, PATH_BYTES_MAX, WHOLE_MAX

from .allocators import DEFAULT
from .command_rounds import with_rounds
from .model import (
    ID_CHARS_MAX,
    NAMED_MAX,
    RETRIES_MAX,
    SECONDS_MAX,
    STEPS_MAX,
    Condition,
    Cost,
    Graph,
    GraphStep,
    OnFailure,
    StepKind,
    Trigger,
)

NUMBER_MAX = 1e300
DIGEST = r"^[0-9a-f]{64}$"
Word = (
    bool
    | Annotated[int, Field(ge=-WHOLE_MAX, le=WHOLE_MAX)]
    | Annotated[float, Field(ge=-NUMBER_MAX, le=NUMBER_MAX)]
    | Annotated[str, Field(max_length=256)]
    | None
)
GRAPH_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$"
"""A job's id, short enough that those of its steps are none too long; without dots, which these have."""
StepId = Annotated[str, Field(min_length=1, max_length=ID_CHARS_MAX)]
CHECKPOINTS_SINCE = 10
"""The version of the ledger from which steps have checkpoints, and stream."""
Amount = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(parse_bytes)]


class StepInput(RequestBody):
    """A step whose value is taken. *bytes*: how much of it, where that is not all that the other gives."""

    step: StepId
    bytes: Amount | None = None


def _input(value: object) -> object:
    return {"step": value} if isinstance(value, str) else value


class StepCondition(RequestBody):
    """Another step, and the word that it has to have given: a number, a truth or a short text."""

    step: StepId
    word: Word
    negated: bool = Field(default=False, description="another word than that")


def _checkpoint(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


def _conditions(value: object) -> object:
    return [value] if isinstance(value, dict) else value


class CallPlace(RequestBody):
    """Where in the graph's bundle the call of a function begins, and how long it is, its digest included."""

    offset: Annotated[int, Field(ge=0, le=2**40)]
    size: Annotated[int, Field(ge=0, le=2**40)]


class StepCacheRequest(RequestBody):
    """By what a step's result is found again."""

    call: str = Field(pattern=DIGEST, description="SHA-256 of the call: its code and its arguments")
    takes: list[StepId] = Field(
        default_factory=list, max_length=STEPS_MAX, description="steps that it takes from, in the order of the call"
    )
    refresh: bool = Field(default=False, description="compute it anew, and keep it")


class StepRequest(Resources):
    """One step of a graph. *gpus*, *cpus*, *memory* and the like are what one run of it needs."""

    id: StepId
    kind: StepKind = StepKind.COMMAND
    command: list[ExecText] = Field(
        default_factory=list, max_length=4096, description="argv; a text is a line for sh -c"
    )
    inputs: list[Annotated[StepInput, BeforeValidator(_input)]] = Field(
        default_factory=list, max_length=STEPS_MAX, description="steps whose values it takes"
    )
    after: list[StepId] = Field(default_factory=list, max_length=STEPS_MAX, description="steps that come before it")
    when: Annotated[list[StepCondition], BeforeValidator(_conditions)] = Field(
        default_factory=list, max_length=64, description="it runs if all of these hold, and is passed over else"
    )
    trigger: Trigger = Field(
        default=Trigger.NONE_FAILED,
        description="whether it runs where steps of `after` were passed over: none_failed (it does), some_succeeded (if"
        " not all were), all_succeeded (if none was)",
    )
    last: bool = Field(default=False, description="of a merge: takes the last of its inputs that has a value")
    outputs: list[OutputPath] = Field(
        default_factory=list,
        max_length=OUTPUTS_MAX,
        description="of a command: files and folders below its directory that it is to leave; steps that take from it"
        " find them in theirs",
    )
    call: CallPlace | None = Field(default=None, description="of a function: where in the bundle it is")
    function: str = Field(default="", max_length=200, description="of a function: what it is called")
    runtime_s: float | None = Field(default=None, ge=0, le=SECONDS_MAX, description="how long it is expected to take")
    output_bytes: Amount | None = Field(default=None, description="how much it is expected to give")
    needs: dict[str, Annotated[int, Field(ge=0, le=2**53)]] = Field(
        default_factory=dict, max_length=NAMED_MAX, description="amounts of the graph's own resources"
    )
    node: str = Field(default="", max_length=128, description="the host that it must run on")
    collocated: str = Field(default="", max_length=ID_CHARS_MAX, description="the step on whose host it must run")
    retries: int = Field(default=0, ge=0, le=RETRIES_MAX, description="further attempts after a failure")
    max_execution_time_s: float | None = Field(
        default=None,
        gt=0,
        le=SECONDS_MAX,
        validation_alias=AliasChoices("max_execution_time_s", "timeout", "timeout_s"),
        description="each attempt is stopped after this long",
    )
    env: dict[str, ExecText] = Field(default_factory=dict, max_length=1024)
    cwd: str | None = Field(default=None, max_length=PATH_BYTES_MAX)
    pool: Pool | None = None
    gang: int = Field(default=1, ge=1, le=256, description="members that start together, each with these resources")
    spread: bool = Field(default=False, description="of a gang: no two members on one host")
    cache: StepCacheRequest | None = Field(
        default=None, description="take its result, or its outputs, over from an earlier graph, if they are there"
    )

    checkpoint: Annotated[CheckpointRequest, BeforeValidator(_checkpoint)] | None = Field(
        default=None, description="of a command: a directory, or {path, every_s}, whose content follows it, as of a job"
    )
    stream: bool = Field(default=False, description="of a function: it gives items, one by one, as a generator does")
    streams: list[StepId] = Field(
        default_factory=list, max_length=NAMED_MAX, description="of its inputs, those whose items it takes as they come"
    )
    extends: bool = Field(default=False, description="of a function: it may give further steps of the graph")

    @model_validator(mode="before")
    @classmethod
    def _line(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("command"), str):
            return {**value, "command": ["sh", "-c", value["command"]]}
        return value

    @model_validator(mode="before")
    @classmethod
    def _merge(cls, value: object) -> object:
        if isinstance(value, dict) and "merge" in value and not {"kind", "inputs"} & value.keys():
            return {**{name: each for name, each in value.items() if name != "merge"}, "kind": "merge"} | {
                "inputs": value["merge"]
            }
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> StepRequest:
        if self.kind is StepKind.COMMAND and not self.command:
            raise ValueError(f"step {self.id}: a command is missing: a line for the shell, or a list of words")
        if (self.kind in (StepKind.FUNCTION, StepKind.VALUE, StepKind.INLINE)) != (self.call is not None):
            raise ValueError(f"step {self.id}: functions and values have a call in the bundle, others have none")
        if self.extends and (self.kind is not StepKind.FUNCTION or self.cache is not None or self.gang > 1):
            raise ValueError(f"step {self.id}: what extends its graph is a function, of no gang and without cache")
        if self.outputs and (self.kind is not StepKind.COMMAND or self.gang > 1):
            raise ValueError(f"step {self.id}: outputs are of commands, of no gang")
        if self.cache is not None and self.kind is not StepKind.FUNCTION and not self.outputs:
            raise ValueError(f"step {self.id}: cache is of functions, and of commands that name their outputs")
        if (self.stream or self.streams) and (
            self.kind is not StepKind.FUNCTION or self.cache is not None or self.gang > 1 or self.extends
        ):
            raise ValueError(f"step {self.id}: items go between functions, of no gang, without cache and extends")
        if not set(self.streams) <= {each.step for each in self.inputs}:
            raise ValueError(f"step {self.id}: streams are steps among its inputs")
        if self.checkpoint is not None and (self.kind is not StepKind.COMMAND or self.checkpoint.path is None):
            raise ValueError(f"step {self.id}: a checkpoint is a directory of a command: checkpoint: ckpt")
        if self.kind is StepKind.MERGE and not self.inputs:
            raise ValueError(f"step {self.id}: a merge has inputs")
        if self.cwd is not None and not self.cwd.startswith("/"):
            raise ValueError(f"step {self.id}: cwd is no absolute path")
        return self

    def to_step(self) -> GraphStep:
        """The step, for a graph to check. Raises InvalidGraph."""
        sizes = tuple(each.bytes for each in self.inputs)
        known = all(size is not None for size in sizes)
        return GraphStep(
            self.id,
            self.kind,
            inputs=tuple(each.step for each in self.inputs),
            after=tuple(self.after),
            cost=self._cost(),
            input_bytes=tuple(size or 0 for size in sizes) if known else (),
            node=self.node,
            collocated=self.collocated,
            retries=self.retries,
            when=tuple(Condition(each.step, each.word, each.negated) for each in self.when),
            last=self.last,
            trigger=self.trigger,
        )

    def _cost(self) -> Cost:
        if not self.kind.is_work:
            return Cost(Demand(), 0.0, self.output_bytes)
        return Cost(Demand.of_request(self), self.runtime_s, self.output_bytes, dict(self.needs))


class GraphRequest(RequestBody):
    """A graph to accept: it is one job, and its steps are jobs of it."""

    graph_id: str = Field(default_factory=lambda: uuid.uuid4().hex, pattern=GRAPH_ID)
    name: str = Field(default="", max_length=200)
    strategy: str = Field(default=DEFAULT, max_length=100, description="who decides which step runs where")
    on_failure: OnFailure = OnFailure.FAIL_FAST
    in_parallel: int = Field(default=0, ge=0, le=STEPS_MAX, description="steps that may run at once; 0: any number")
    resources: dict[str, Annotated[int, Field(ge=0, le=2**53)]] = Field(
        default_factory=dict, max_length=NAMED_MAX, description="what the graph counts by itself, as licences"
    )
    user_id: str = Field(default="local", max_length=128)
    priority: int = Field(default=50, ge=0, le=100, description="higher is served first")
    python: str = Field(default="", max_length=32, description="client's major.minor, for functions")
    env: dict[str, ExecText] = Field(default_factory=dict, max_length=1024, description="of all steps")
    max_isolation_s: float | None = Field(default=None, ge=3, le=86400)
    preemptible: bool = True
    annotations: Annotations = Field(default_factory=dict, max_length=ANNOTATIONS_MAX)
    labels: Labels = Field(default_factory=dict, max_length=LABELS_MAX, description=LABELS_TEXT)
    notify: Targets = Field(default_factory=list, max_length=TARGETS_MAX, description=TARGETS_TEXT)
    notify_on: EventWords = Field(default_factory=list, max_length=len(EVENTS) + 1, description="as of a job")
    bundle: str | None = Field(default=None, pattern=DIGEST, description="SHA-256 of the file with all calls")
    working_dir: str | None = Field(default=None, pattern=DIGEST, description="as of a job")
    environment: str | None = Field(
        default=None, pattern=DIGEST, description="SHA-256 of the spec of a Python environment"
    )
    steps: list[StepRequest] = Field(min_length=1, max_length=STEPS_MAX)

    @property
    def keeps_results(self) -> bool:
        """Whether results of steps are to be found by later graphs."""
        return any(step.cache is not None for step in self.steps)

    @property
    def grows(self) -> bool:
        """Whether steps of it may give further ones."""
        return any(step.extends for step in self.steps)

    @property
    def asks_commands(self) -> bool:
        """Whether more is asked of its commands than to run: words that others wait for, files that they take. Or
        steps go by another trigger, or by the contrary of a condition: hosts of before cannot read that either."""
        asked = {each.step for step in self.steps for each in step.when}
        return any(
            (step.kind is StepKind.COMMAND and (step.outputs or step.id in asked))
            or step.trigger is not Trigger.NONE_FAILED
            or any(each.negated for each in step.when)
            for step in self.steps
        )

    @property
    def spec_version(self) -> int:
        """The version of the ledger whose hosts can read all of it; 0: any that has graphs."""
        asked = (
            (step.checkpoint, step.stream, step.streams, step.min_isolation, step.gpu_topology) for step in self.steps
        )
        later = any(any(map(bool, each)) for each in asked)
        return CHECKPOINTS_SINCE if later else 0

    @model_validator(mode="before")
    @classmethod
    def _rounds(cls, value: object) -> object:
        return with_rounds(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _whole(self) -> GraphRequest:
        if self.bundle is None and any(step.call is not None for step in self.steps):
            raise ValueError("bundle: functions are in a file that is sent before: use the Python client")
        streaming = {step.id for step in self.steps if step.stream}
        for step in self.steps if streaming else ():
            if step.kind in (StepKind.MERGE, StepKind.INLINE) and any(each.step in streaming for each in step.inputs):
                raise ValueError(f"step {step.id}: a {step.kind.value} takes no items; have a step take them")
        for step in self.steps:
            if wrong := set(step.streams) - streaming:
                raise ValueError(f"step {step.id}: step {min(wrong)} gives no items: stream is of the step that does")
        return self

    def to_graph(self) -> Graph:
        """The checked graph. Raises InvalidGraph, MissingProducer, CyclicGraph."""
        steps = [step.to_step() for step in self.steps]
        return Graph(steps, named=self.resources, in_parallel=self.in_parallel, name=self.name)
