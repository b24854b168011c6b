"""What the ledger knows of a service: what its replicas run, how many there are to be, and each of them."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class ServedJobRecord(TypedDict):
    """Of a job that is a replica of a service: which it serves."""

    name: str
    """The service."""
    revision: str
    """The revision of it that it runs."""


class ServingRecord(TypedDict):
    """How requests reach a replica, and how it is known to answer."""

    protocol: str
    """openai: an OpenAI-compatible server; http: any other."""
    model: str
    """The model's name as the server knows it; empty: the first that it lists."""
    ready_path: str
    """The path whose answer makes a replica ready; empty: a real completion does."""
    ready_body: str
    """What is posted there, JSON; empty: it is a GET."""
    live_path: str
    """The path that is asked for as long as it serves."""
    start_timeout_s: float
    """How long it may take from the start of its process to its first answer, in seconds."""
    preset: str
    """The server it is, if one of those that are known: vllm, sglang or llama.cpp."""


class ServiceScaleRecord(TypedDict):
    """How many replicas there are to be, and how they are exchanged."""

    min: int
    """So many at least; 0: none while nobody asks."""
    max: int
    """So many at most."""
    concurrency: int
    """Requests that one replica serves at once."""
    idle_s: float
    """With a minimum of 0: how long after the last request the last replica ends, in seconds."""
    drain_s: float
    """How long a replica that leaves may take for the requests that it has, in seconds."""
    strategy: str
    """auto: a new replica comes before an old one leaves where there is room, else after; surge; replace."""


class AdapterRecord(TypedDict):
    """A LoRA adapter of a service, which clients ask for as a model of its own."""

    model: str
    """As clients write it; no other service or adapter has that name."""
    served_as: str
    """As the replicas know it."""


class RoutingRecord(TypedDict):
    """How gateways lead requests to the replicas. It is no part of a revision: what is written holds at once."""

    strategy: str
    """How a replica is chosen, a word of the gateways (serving/table.py)."""
    affinity_header: str
    """Requests with the same value of it go to the same replica; empty: there is none."""
    adapters: list[AdapterRecord]
    """Further models."""
    fallbacks: list[str]
    """The models that answer in turn where this has no replica that does."""


class ServiceRevisionRecord(TypedDict):
    """One writing of what the replicas of a service run."""

    revision: str
    """The beginning of the SHA-256 of ``job`` and ``serving``, in hex."""
    number: int
    """Its place among the revisions of the service, from 1."""
    job: dict[str, Any]
    """The job that each replica is, as it was submitted: without its id and its time."""
    serving: ServingRecord
    """How it is asked."""
    made_by: str
    """Who wrote it."""
    made_at: float
    """When."""
    outcome: str
    """Empty: not decided yet; good: it came to serve; failed; withdrawn."""
    reason: str
    """Why it failed."""
    failures: int
    """How many of its replicas in a row ended by themselves, without having served for a minute."""
    failed_at: float
    """When the last of them did."""
    failed_with: str
    """What the last of them ended with."""


class ReplicaRecord(TypedDict):
    """One replica: a job of the ledger."""

    job_id: str
    """Its job."""
    revision: str
    """What it runs."""
    made_at: float
    """When it was made."""
    state: str
    """queued, starting, ready, unhealthy or draining."""
    since: float
    """From when it has been in that state."""
    reason: str
    """What is wrong with it, or why it leaves."""
    host: str
    """Where it is; empty: nowhere yet."""
    attempt_id: str
    """The attempt that answers at ``port``; empty: none does."""
    token: list[int]
    """The fencing token of that attempt: an address of an earlier one is never used."""
    port: int
    """On the loopback of its host."""
    model: str
    """The name under which it knows its model."""
    ready_at: float | None
    """When it first answered."""


class EndedReplicaRecord(TypedDict):
    """A replica that is no more."""

    job_id: str
    """Its job."""
    revision: str
    """What it ran."""
    state: str
    """How its job ended."""
    reason: str
    """Why."""
    at: float
    """When."""
    asked: bool
    """It was to end: it had been replaced, was one too many, or somebody had cancelled it."""


class RolloutRecord(TypedDict):
    """The exchange of a service's replicas for those of another revision, while it goes on."""

    to: str
    """The revision that they are exchanged for."""
    canary: int
    """Of the first part: the percentage of requests that the new revision gets; 0: there is no such part, or it is
    over."""
    canary_s: float
    """How long that part lasts from when the new revision is ready, in seconds."""
    began_at: float
    """When it was begun."""
    by: str
    """Who began it."""
    back: bool
    """It goes back to a revision of before."""


class ServiceRecord(TypedDict):
    """A service."""

    name: str
    """What people call it, and what its model is called where requests name one."""
    user_id: str
    """Whose jobs its replicas are."""
    made_by: str
    """Who made it."""
    made_at: float
    """When."""
    changed: int
    """The entry that it last changed with: what the leader decided on an earlier one is refused."""
    scale: ServiceScaleRecord
    """How many replicas there are to be."""
    target: int
    """So many of them now."""
    revision: str
    """What serves."""
    revisions: list[ServiceRevisionRecord]
    """That, what it is exchanged for, and the last of before, oldest first."""
    rollout: RolloutRecord | None
    """The exchange that goes on."""
    replicas: list[ReplicaRecord]
    """The replicas, oldest first."""
    made_total: int
    """How many replicas were made."""
    revisions_total: int
    """How many revisions were."""
    ended: list[EndedReplicaRecord]
    """The last of those that are no more, oldest first."""
    problem: str
    """Why there are fewer than there are to be; empty: there are not, or nobody knows why yet."""
    last_rollout: NotRequired[str]
    """What became of the last exchange."""
    removed_by: NotRequired[str]
    """Who took it away: it goes once its last replica has ended, and nothing else is written about it."""
    routing: NotRequired[RoutingRecord]
    """How requests come to its replicas; absent: ``USUAL_ROUTING``."""


USUAL_ROUTING: RoutingRecord = {
    "strategy": "prefix_cost",
    "affinity_header": "x-session-id",
    "adapters": [],
    "fallbacks": [],
}


def revision_in(record: ServiceRecord, digest: str) -> ServiceRevisionRecord:
    """The revision of a service with that digest, which is one of its."""
    return next(each for each in record["revisions"] if each["revision"] == digest)


def goal_of(record: ServiceRecord) -> str:
    """The digest of what its replicas are to run: what they are exchanged for, or else what they run."""
    return record["revision"] if record["rollout"] is None else record["rollout"]["to"]
