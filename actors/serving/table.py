"""What model gateways are told, and what they tell back: services, their replicas and keys, and what is asked of them.

The agent of a host derives a ServiceTable from the ledger and hands it to the host's gateway; that keeps the last one
on the disk as well, and serves by it without agent or quorum. It answers with what is asked of each service: once a
second, and at once where a request comes for a service that has no ready replica.

The same JSON goes over the socket and lies on the disk. Whatever arrives is checked against these types and their
bounds before anything is made of it.

Bounds: 1,000 services, 4,096 replicas in one service, 16,384 in all, 1,000 keys; a table is 16 MiB at most.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from actorgrid.errors import BadRequest, MalformedMessage

Record = TypeVar("Record")
TABLE_VERSION: Literal[1] = 1
"""Of the form. A gateway refuses a table of another one, and goes on by the last that it could read."""
TABLE_BYTES_MAX = 16 * 2**20
SERVICES_MAX = 1_000
REPLICAS_OF_ONE_MAX = 4_096
REPLICAS_MAX = 16_384
KEYS_MAX = 1_000
MODELS_OF_ONE_MAX = 256
HELD_COUNT, HELD_BYTES, HELD_S = 256, 64 * 2**20, 600.0

Name = Annotated[str, Field(min_length=1, max_length=253)]
ModelName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Moment = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class ReplicaState(StrEnum):
    """Whether a replica gets requests."""

    STARTING = "starting"
    """It runs, and has not answered a request yet: it gets none."""
    READY = "ready"
    DRAINING = "draining"
    """It gets no more, and finishes those it has."""


class RoutingStrategy(StrEnum):
    """How one of a service's replicas is chosen (routing.py); the last four are those of LoadBalancer."""

    PREFIX_HASH = "prefix_hash"
    """By the head of the session, with a bound on the load: nothing is shared between gateways."""
    PREFIX_COST = "prefix_cost"
    """By what each has to compute: pending prompts, what its cache lacks of this one, and requests that run there."""
    ROUND_ROBIN = "round_robin"
    WEIGHTED_ROUND_ROBIN = "weighted_round_robin"
    LEAST_LOADED = "least_loaded"
    AFFINITY_AWARE = "affinity_aware"


@dataclass(frozen=True, slots=True)
class ReplicaEndpoint:
    """A replica of a service, and how a gateway comes to it."""

    replica_id: Name
    """The same over restarts of the replica: by it sessions find their replica again."""
    host: Name
    """The id of the host that it runs on."""
    attempt: Name
    """Another one for each start of the replica: what is remembered of its cache is dropped with it."""
    revision: Name
    """The hash of the spec that it was started by."""
    state: ReplicaState
    port: Port
    """Where it listens on the loopback address of its own host; 0: not known yet."""
    gateway: Annotated[str, Field(max_length=300)] = ""
    """``ADDRESS:PORT`` of the model gateway of its host, for those of other hosts; empty: that has none (yet)."""


@dataclass(frozen=True, slots=True)
class RevisionWeight:
    """Of which keys a revision serves how many, while two revisions are served (a canary)."""

    revision: Name
    percent: Annotated[int, Field(ge=0, le=100)]


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter of a service, which clients ask for as a model of its own."""

    model: ModelName
    """As clients write it."""
    served_as: ModelName
    """As the replicas know it: written into the request in place of the other."""


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """How much of a service may wait and run in one gateway process; what is over that is refused with 429."""

    in_flight_max: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    held_max: Annotated[int, Field(ge=0, le=100_000)] = HELD_COUNT
    """Requests that wait for a first replica."""
    held_bytes_max: Annotated[int, Field(ge=0, le=2**32)] = HELD_BYTES
    """Their bodies together."""
    held_s: Seconds = HELD_S


@dataclass(frozen=True, slots=True)
class RouteTimeouts:
    """How long a gateway waits for a replica."""

    first_byte_s: Seconds = 600.0
    """From the request to the first byte of the answer."""
    idle_s: Seconds = 300.0
    """Between two pieces of an answer."""
    total_s: Seconds = 3_600.0


@dataclass(frozen=True, slots=True)
class ServiceRoute:
    """A service as the gateways see it."""

    name: Name
    models: Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=MODELS_OF_ONE_MAX)]
    """The models that clients ask for by these names."""
    replicas: Annotated[tuple[ReplicaEndpoint, ...], Field(max_length=REPLICAS_OF_ONE_MAX)] = ()
    served_as: Annotated[str, Field(max_length=256)] = ""
    """What replicas call the model, where that is another name; empty: what the client wrote."""
    adapters: Annotated[tuple[LoraAdapter, ...], Field(max_length=MODELS_OF_ONE_MAX)] = ()
    strategy: RoutingStrategy = RoutingStrategy.PREFIX_COST
    affinity_header: Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9-]*$")] = "x-session-id"
    """A request with this header goes where others of the same value went; empty: there is none."""
    fallback_models: Annotated[tuple[ModelName, ...], Field(max_length=8)] = ()
    """Asked in turn where this service has no replica that answers."""
    revisions: Annotated[tuple[RevisionWeight, ...], Field(max_length=8)] = ()
    """Empty: replicas of all revisions are alike."""
    limits: RouteLimits = RouteLimits()
    timeouts: RouteTimeouts = RouteTimeouts()
    asks_usage: bool = True
    """Whether streams are asked for their usage where the client did not ask."""
    tenant: Annotated[str, Field(max_length=253)] = ""
    """Whose it is: of requests without a key, and of keys of all tenants, what is used counts for it."""
    scales_from_zero: bool = False
    """Whether requests are held while there is no replica, since one will come."""
    reason: Annotated[str, Field(max_length=2_000)] = ""
    """Why it has no replica, in the words of ``why``; told to clients."""
    created: Moment = 0.0
    """Seconds since the epoch, as ``/v1/models`` shows it."""

    @model_validator(mode="after")
    def _fits(self) -> ServiceRoute:
        if sum(each.percent for each in self.revisions) not in (0, 100):
            raise ValueError("the percents of the revisions have to add up to 100")
        names = {each.replica_id for each in self.replicas}
        if len(names) != len(self.replicas):
            raise ValueError("two replicas have one id")
        return self


@dataclass(frozen=True, slots=True)
class ServiceKey:
    """What a client shows as its API key, and what it may do with it. Limits hold over all gateways together."""

    key_id: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the key's text, as ``ledger/api_keys.py`` makes it."""
    user: Name
    tenant: Annotated[str, Field(max_length=253)] = ""
    expires_at: Moment | None = None
    models: Annotated[tuple[ModelName, ...], Field(max_length=MODELS_OF_ONE_MAX)] | None = None
    """``None``: all."""
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    tokens_per_month: Count | None = None
    """A budget: what is over it is refused until the next month (UTC)."""
    requests_per_month: Count | None = None

    @property
    def has_budget(self) -> bool:
        """Whether what it uses in a month is bounded."""
        return self.tokens_per_month is not None or self.requests_per_month is not None


@dataclass(frozen=True, slots=True)
class ServiceTable:
    """All that a host's gateways have to know."""

    sequence: Count
    """Grows with each table of one agent's life; another one with the same number is the same."""
    host: Name
    """The id of this host: replicas on it are reached over loopback."""
    services: Annotated[tuple[ServiceRoute, ...], Field(max_length=SERVICES_MAX)] = ()
    keys: Annotated[tuple[ServiceKey, ...], Field(max_length=KEYS_MAX)] = ()
    keys_required: bool = True
    """Whether a request without a key is refused on loopback too. Beyond loopback it always is."""
    members: Annotated[tuple[Name, ...], Field(max_length=4_096)] = ()
    """The ids of the cluster's hosts: their gateways may ask for replicas here."""
    peers: Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=4_096)] = ()
    """``ADDRESS:PORT`` of the gateways of other hosts: they are told which prompts went where."""
    version: Literal[1] = TABLE_VERSION

    @model_validator(mode="after")
    def _unique(self) -> ServiceTable:
        asked = [model for each in self.services for model in (*each.models, *(one.model for one in each.adapters))]
        if len(set(asked)) != len(asked):
            raise ValueError("two services, or a service and an adapter, have one model")
        if len({each.name for each in self.services}) != len(self.services):
            raise ValueError("two services have one name")
        if sum(len(each.replicas) for each in self.services) > REPLICAS_MAX:
            raise ValueError(f"more than {REPLICAS_MAX} replicas")
        return self


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """How a replica did, as the gateways of one host saw it."""

    replica_id: Name
    attempt: Name
    in_flight: Count
    requests_total: Count
    failures_total: Count
    """Answers of 5xx, connections that broke, time that ran out; not what clients gave up."""
    is_ejected: bool
    """Whether it gets no requests for now, because it failed again and again."""


@dataclass(frozen=True, slots=True)
class RevisionReport:
    """How a revision did since the gateway began; what a rollout is judged by."""

    revision: Name
    requests_total: Count
    failures_total: Count
    first_byte_p50_s: Moment
    """Of the last 1,000 requests; 0 without any."""
    first_byte_p99_s: Moment


@dataclass(frozen=True, slots=True)
class ServiceDemand:
    """What is asked of a service at the gateways of one host. No report is not the same as none."""

    service: Name
    in_flight: Count
    """Requests that a replica has."""
    held: Count
    """Requests that wait for a replica."""
    oldest_held_s: Moment
    requests_total: Count
    errors_total: Count
    """Answered with 5xx, or broken off by a replica."""
    last_request_at: Moment
    """Seconds since the epoch; 0: there was none."""
    replicas: Annotated[tuple[ReplicaReport, ...], Field(max_length=REPLICAS_OF_ONE_MAX)] = ()
    revisions: Annotated[tuple[RevisionReport, ...], Field(max_length=8)] = ()


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What was used since the last report, by one key of one model."""

    key_id: Annotated[str, Field(max_length=253)]
    """Empty: without a key."""
    user: Annotated[str, Field(max_length=253)]
    tenant: Annotated[str, Field(max_length=253)]
    service: Name
    model: ModelName
    requests: Count
    aborted: Count
    """Of these, the ones that clients or replicas broke off."""
    prompt_tokens: Count
    cached_tokens: Count
    """Of these, the ones that a replica's cache had."""
    completion_tokens: Count
    estimated_tokens: Count
    """Of both, the ones that no answer told of: counted by the bytes of what was relayed."""


@dataclass(frozen=True, slots=True)
class DemandReport:
    """What the gateways of one host tell their agent."""

    table_sequence: Count
    """The table by which they route."""
    demands: Annotated[tuple[ServiceDemand, ...], Field(max_length=SERVICES_MAX)] = ()
    usage: Annotated[tuple[ModelUsage, ...], Field(max_length=10_000)] = ()
    """Of a worker, for the main process, which keeps it."""


_TABLES = TypeAdapter(ServiceTable)
_REPORTS = TypeAdapter(DemandReport)


def encode_table(table: ServiceTable) -> bytes:
    """The table as JSON. Raises BadRequest for one that is too large."""
    text = _TABLES.dump_json(table)
    if len(text) > TABLE_BYTES_MAX:
        raise BadRequest("the table of services is too large", asked=f"{len(text)} bytes", found=str(TABLE_BYTES_MAX))
    return text


def decode_table(text: bytes) -> ServiceTable:
    """The table in *text*. Raises MalformedMessage."""
    return _decode(_TABLES, text, "a table of services")


def encode_report(report: DemandReport) -> bytes:
    """The report as JSON."""
    return _REPORTS.dump_json(report)


def decode_report(text: bytes) -> DemandReport:
    """The report in *text*. Raises MalformedMessage."""
    return _decode(_REPORTS, text, "a gateway's report")


def _decode(adapter: TypeAdapter[Record], text: bytes, what: str) -> Record:
    if len(text) > TABLE_BYTES_MAX:
        raise MalformedMessage(f"{what} is too large", found=f"{len(text)} bytes", asked=f"{TABLE_BYTES_MAX} at most")
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise MalformedMessage(f"{what} is not as it should be", asked=place, found=first["msg"]) from None
