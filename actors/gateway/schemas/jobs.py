"""What the routes of jobs take and give beyond the models of ``actorgrid.models``."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, AwareDatetime, Field

from actorgrid.demand import DemandEdit
from actorgrid.labels import CHANGES_MAX, LABEL_CHARS_MAX, LABELS_MAX, checked_changes
from actorgrid.models import AnswerBody, Bytes, JobId, Labels, Name, RequestBody, share_or_whole

WAITED_MAX = 1_000
"""Jobs that one request waits for."""
RESULTS_MAX = 64
"""Jobs whose results one answer has."""

LabelChanges = Annotated[
    dict[str, Annotated[str, Field(max_length=LABEL_CHARS_MAX)] | None], AfterValidator(checked_changes)
]


class EditRequest(RequestBody):
    """What is to be another of a waiting job; what is not named stays."""

    priority: int = Field(default=50, ge=0, le=100, description="higher is served first")
    max_execution_time_s: float | None = Field(
        default=None, gt=0, le=1e9, description="each attempt is stopped after this long; null: never"
    )
    deadline: AwareDatetime | None = Field(
        default=None, description="it is to be done by then: a time with its zone; null: whenever"
    )
    deadline_s: float | None = Field(
        default=None, gt=0, le=1e9, description="it is to be done so many seconds from now; instead of deadline"
    )
    gpus: Annotated[float, AfterValidator(share_or_whole)] = Field(
        default=0.0, ge=0, le=1024, description="GPUs: a fraction of one, or a whole number; 0: none of any kind"
    )
    gpu_memory_bytes: Bytes = Field(
        default=0,
        validation_alias=AliasChoices("gpu_memory_bytes", "gpu_memory"),
        description="device memory needed on each GPU",
    )
    gpu_models: list[Name] = Field(
        default_factory=list, max_length=64, description="acceptable models, vendors, architectures; empty: any"
    )
    cpus: float = Field(default=1.0, ge=0, le=4096)
    memory_bytes: Bytes = Field(
        default=0, validation_alias=AliasChoices("memory_bytes", "memory"), description="host memory; 0: not limited"
    )
    labels: LabelChanges = Field(
        default_factory=dict,
        max_length=CHANGES_MAX,
        description="labels that it is to have beside its others; null takes one away",
    )

    def demand(self) -> DemandEdit:
        """What it is to ask for that is another."""
        names = {each.name for each in fields(DemandEdit)} & self.model_fields_set
        named = {name: getattr(self, name) for name in names}
        if "gpu_models" in named:
            named["gpu_models"] = tuple(named["gpu_models"])
        return DemandEdit(**named)


class ChannelQuery(RequestBody):
    """Which member of a gang."""

    rank: int = Field(default=0, ge=0, le=255, description="of a gang: this member")


class ChannelAnswer(AnswerBody):
    """Where a running job is come to: what a stream of ``/api/relay`` to it names, and its client says there."""

    job_id: str
    attempt_id: str
    attempt: int
    host: str
    secret: str
    terminal: bool
    """Whether the job has a terminal of its own, to attach to."""


class JobEdited(AnswerBody):
    """What the job has now."""

    job_id: str
    priority: int
    max_execution_time_s: float | None
    deadline: float | None = None
    resources: dict[str, Any] | None = None
    """What each attempt asks for, where that was changed."""
    labels: dict[str, str] | None = None
    """All its labels, where these were changed."""


class JobRetried(AnswerBody):
    """A job that waits again. *attempts*: how many it has had."""

    job_id: str
    attempts: int


class JobsWaitRequest(RequestBody):
    """Which jobs to wait for, and how long."""

    job_ids: list[JobId] = Field(min_length=1, max_length=WAITED_MAX)
    any: bool = Field(default=False, description="until one of them has ended; else until all have")
    wait_s: float = Field(default=0.0, ge=0, le=600, allow_inf_nan=False)


class ResultsRequest(RequestBody):
    """Whose results to give."""

    job_ids: list[JobId] = Field(min_length=1, max_length=RESULTS_MAX)


class ResultOfJob(AnswerBody):
    """The result file of a job; ``None`` where it has to be asked for by itself, which says why where there is none."""

    job_id: str
    result: bytes | None = Field(description="base64 in JSON")


class ResultsAnswer(AnswerBody):
    """In the order they were asked for."""

    results: list[ResultOfJob]


class CancelRequest(RequestBody):
    """Which jobs to cancel: those that have all of these labels."""

    labels: Labels = Field(min_length=1, max_length=LABELS_MAX)


class JobStateNow(AnswerBody):
    """A job and its state."""

    job_id: str
    state: str


class JobsWaited(AnswerBody):
    """How they are now. *done*: what was waited for has come."""

    jobs: list[JobStateNow]
    done: bool


class JobsCancelled(AnswerBody):
    """Jobs that were cancelled, with the state that they had. *more*: there are further ones."""

    jobs: list[JobStateNow]
    more: bool
