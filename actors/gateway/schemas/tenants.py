"""Bodies and answers about tenants."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field

from actorgrid.models import AnswerBody, Bytes, RequestBody

_Count = Annotated[float, Field(ge=0, le=1_000_000)]


class TenantAmounts(RequestBody):
    """Amounts of resources; what is not given, or null, is not meant."""

    gpus: _Count | None = Field(default=None, description="devices of any model; shares add up")
    gpus_by_model: dict[str, _Count] = Field(default_factory=dict, max_length=32, description="devices by model")
    gpu_memory_bytes: Bytes | None = Field(
        default=None,
        validation_alias=AliasChoices("gpu_memory_bytes", "gpu_memory"),
        description="of all devices together; a whole device counts with all of its memory",
    )
    cpus: _Count | None = None
    memory_bytes: Bytes | None = Field(default=None, validation_alias=AliasChoices("memory_bytes", "memory"))


class TenantBounds(TenantAmounts):
    """The most that a tenant may hold at once, and have waiting."""

    jobs_waiting: int | None = Field(default=None, ge=0, le=2**31)
    waiting_bytes: Bytes | None = Field(default=None, description="bytes that its waiting jobs may take")


class TenantTermsRequest(RequestBody):
    """What a tenant is given. What is not given stays as it is; a guarantee or limits that are given replace all."""

    weight: float | None = Field(default=None, ge=0.001, le=1000)
    guarantee: TenantAmounts | None = None
    limits: TenantBounds | None = None


class TenantRequest(TenantTermsRequest):
    """A tenant to be created."""

    name: str = Field(min_length=1, max_length=48)


class TenantHeld(AnswerBody):
    """Amounts of resources; null: none is meant."""

    gpus: float | None
    gpus_by_model: dict[str, float]
    gpu_memory_bytes: int | None
    cpus: float | None
    memory_bytes: int | None


class TenantMost(TenantHeld):
    """The most that a tenant may hold, and have waiting; null is no limit."""

    jobs_waiting: int | None
    waiting_bytes: int | None


class Tenant(AnswerBody):
    """A tenant: what it is given, holds, held of late, and has waiting."""

    name: str
    known: bool = Field(description="whether it was created; one that was not has a weight of 1 and no more")
    removed_at: float | None = Field(description="when it was removed: nothing of it is taken or starts any more")
    weight: float
    guarantee: TenantHeld
    limits: TenantMost
    used: TenantHeld
    of_late: TenantHeld = Field(description="the mean of what it held, which forgets half in a week")
    jobs_waiting: int
    waiting_bytes: int
    share: float = Field(description="the largest part of any resource that it holds and held of late, by its weight")
    share_of: str = Field(description="the resource that is of; empty: it had nothing")


class TenantsAnswer(AnswerBody):
    """Tenants that were created, hold something or have jobs waiting, by name."""

    tenants: list[Tenant]


class TenantRemoved(AnswerBody):
    """A tenant that was removed, and what was ended of it."""

    tenant: Tenant
    cancelled: int = Field(description="jobs that were cancelled now")
    sessions: int = Field(description="sessions that were closed now")
    more: bool = Field(description="whether some are left: remove it again")
