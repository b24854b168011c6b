"""What the routes of services take and give."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from actorgrid.actors.ledger.service_checks import (
    ADAPTERS_MAX,
    BODY_CHARS_MAX,
    CONCURRENCY_MAX,
    FALLBACKS_MAX,
    MODEL_CHARS_MAX,
    REPLICAS_MAX,
    SECONDS_MAX,
)
from actorgrid.models import AnswerBody, RequestBody, TaskRequest

Strategy = Literal["auto", "surge", "replace"]
Protocol = Literal["openai", "http"]
Preset = Literal["", "vllm", "sglang", "llama.cpp"]
RouteName = Literal[
    "prefix_cost", "prefix_hash", "round_robin", "weighted_round_robin", "least_loaded", "affinity_aware"
]
ModelText = Annotated[str, Field(min_length=1, max_length=MODEL_CHARS_MAX)]
_PATH = r"^(/[!-~]{0,255})?$"


class ServiceAdapter(RequestBody):
    """A LoRA adapter that the replicas have loaded, as a model of its own."""

    model: ModelText = Field(description="as clients write it")
    served_as: str = Field(default="", max_length=MODEL_CHARS_MAX, description="as replicas know it; '': the same")


class ServiceRequest(RequestBody):
    """A service: what each replica runs, how it is asked, how many there are to be.

    What is left out is as it was, where the service is there already.
    """

    job: TaskRequest = Field(description="what each replica is; {port} in its command, and PORT, is where it listens")
    keep: list[Annotated[str, Field(max_length=64)]] = Field(
        default=[], max_length=64, description="of the job as it was: these fields of its record"
    )
    protocol: Protocol | None = Field(default=None, description="openai, or any other HTTP server")
    preset: Preset | None = Field(default=None, description="the server it is, of those that are known")
    model: str | None = Field(default=None, max_length=MODEL_CHARS_MAX, description="as the server calls it")
    ready_path: str | None = Field(default=None, pattern=_PATH, description="whose answer makes it ready; '': a prompt")
    ready_body: str | None = Field(default=None, max_length=BODY_CHARS_MAX, description="JSON that is posted there")
    live_path: str | None = Field(default=None, pattern=_PATH, description="asked for as long as it serves")
    start_timeout_s: float | None = Field(default=None, gt=0, le=SECONDS_MAX, description="from its start to an answer")
    replicas_min: int | None = Field(default=None, ge=0, le=REPLICAS_MAX)
    replicas_max: int | None = Field(default=None, ge=1, le=REPLICAS_MAX)
    concurrency: int | None = Field(default=None, ge=1, le=CONCURRENCY_MAX, description="requests one serves at once")
    idle_s: float | None = Field(default=None, gt=0, le=SECONDS_MAX, description="after the last request, to none")
    drain_s: float | None = Field(default=None, gt=0, le=SECONDS_MAX, description="for the requests of one that leaves")
    strategy: Strategy | None = Field(default=None, description="whether the new comes before the old leaves")
    route: RouteName | None = Field(default=None, description="how gateways choose a replica")
    affinity_header: str | None = Field(
        default=None,
        max_length=64,
        pattern=r"^[A-Za-z0-9-]*$",
        description="its value keeps requests together; '': none",
    )
    adapters: list[ServiceAdapter] | None = Field(default=None, max_length=ADAPTERS_MAX)
    fallbacks: list[ModelText] | None = Field(
        default=None, max_length=FALLBACKS_MAX, description="the models that answer where this has no replica that does"
    )
    replace: bool = Field(default=False, description="exchange the replicas of a service of that name")
    canary: int = Field(default=0, ge=0, le=99, description="percentage of requests that the new get first")
    canary_s: float = Field(default=300.0, gt=0, le=SECONDS_MAX, description="for so long")

    @model_validator(mode="after")
    def _can_be_a_replica(self) -> ServiceRequest:
        job = self.job
        if job.deadline is not None or job.deadline_s is not None or job.depends_on or job.max_execution_time_s:
            raise ValueError("a replica goes on: its job has no deadline, no time limit, and waits for no other")
        if job.retries or job.stop_when_idle_s:
            raise ValueError("a replica that ends is made anew, and is ended by its service: no retries, no idle time")
        return self


class ServiceScale(RequestBody):
    """How many replicas there are to be."""

    replicas_min: int = Field(ge=0, le=REPLICAS_MAX)
    replicas_max: int = Field(ge=1, le=REPLICAS_MAX)

    @model_validator(mode="after")
    def _ordered(self) -> ServiceScale:
        if self.replicas_min > self.replicas_max:
            raise ValueError(f"no more at least ({self.replicas_min}) than at most ({self.replicas_max})")
        return self


class ReplicaView(AnswerBody):
    """One replica; times are seconds since the epoch."""

    job_id: str
    revision: str
    state: Literal["queued", "starting", "ready", "unhealthy", "draining"]
    since: float
    made_at: float
    ready_at: float | None
    host: str
    port: int = Field(description="on the loopback of its host; 0: none yet")
    model: str
    reason: str


class EndedReplicaView(AnswerBody):
    """A replica that is no more; ``asked``: it was to end."""

    job_id: str
    revision: str
    state: str
    reason: str
    at: float
    asked: bool


class RevisionView(AnswerBody):
    """What the replicas run, or ran; ``failures``: so many in a row ended by themselves."""

    revision: str
    number: int
    made_by: str
    made_at: float
    outcome: Literal["", "good", "failed", "withdrawn"]
    reason: str
    failures: int
    failed_at: float
    failed_with: str
    serving: dict[str, Any]
    job: dict[str, Any]


class RolloutView(AnswerBody):
    """The exchange of a service's replicas, while it goes on."""

    to: str
    canary: int
    canary_s: float
    began_at: float
    by: str
    back: bool


class AdapterView(AnswerBody):
    """A LoRA adapter as a model: its name for clients, and for the replicas."""

    model: str
    served_as: str


class ServiceView(AnswerBody):
    """A service; times are seconds since the epoch."""

    name: str
    user_id: str
    made_by: str
    made_at: float
    state: Literal["ready", "starting", "rolling_out", "short", "idle", "failing", "removing"]
    ready: int = Field(description="replicas that answer")
    target: int = Field(description="replicas that there are to be now")
    replicas_min: int
    replicas_max: int
    concurrency: int
    idle_s: float
    drain_s: float
    strategy: Strategy
    route: str = Field(description="how gateways choose a replica")
    affinity_header: str
    adapters: list[AdapterView]
    fallbacks: list[str]
    revision: str
    rollout: RolloutView | None
    last_rollout: str = Field(default="", description="what became of the last exchange")
    problem: str = Field(description="why there are fewer than there are to be")
    replicas: list[ReplicaView]
    ended: list[EndedReplicaView]
    revisions: list[RevisionView]


class ServicesAnswer(AnswerBody):
    """All services, by name."""

    services: list[ServiceView]
    url: str = Field(description="where this host serves models to OpenAI's clients; '': nowhere yet")


class ServicePut(AnswerBody):
    """The service as it is now; ``unchanged``: it was so before."""

    unchanged: bool
    service: ServiceView


class ServiceRemoval(RequestBody):
    """How a service is removed."""

    now: bool = Field(default=False, description="replicas end at once, with the requests that they have")


class ServiceRemoved(AnswerBody):
    """What is removed, and the jobs that end with it: those that answer, once they have finished what they have."""

    name: str
    ending: list[str]


class ServiceWhy(AnswerBody):
    """Why a service is as it is, and what to do."""

    name: str
    state: str
    headline: str
    notes: list[str]
    next_steps: list[str]
