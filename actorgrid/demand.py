"""What work needs of the cluster: one form for the API, the ledger and the scheduler.

It crosses borders in two spellings: the body of an HTTP request (``models.Resources``, in the units that people use)
and ``resources`` of a ledger record (thousandths and MiB). Both are read here, and the record is written here. The
engine takes it as the arguments of ``place``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from actorgrid.device_words import GPU_TOPOLOGIES
from actorgrid.errors import BadRequest
from actorgrid.hotpath.records import MAX_GANG, WHOLE_GPU_MILLI
from actorgrid.isolation_words import NONE, wanted_parts

if TYPE_CHECKING:
    from actorgrid.actors.ledger.record_types import ResourcesRecord
    from actorgrid.models import Resources

NEAR, APART = "near", "apart"
"""How the members of a gang are to lie: on few hosts of one rack, or on one host each. Else: as the engine likes."""
MIG_SLICES = 7
KNOWN_MAX = 4096
"""Different demands of records that are one object each."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of an attempt or a lease; demands that are equal fit or do not fit together.

    Amounts are those of each member of a *gang* (1 to 4096), and of GPUs those of each device. *affinity_hard* are the
    only devices it may have, by UUID (empty: any); *affinity_soft* names racks and hosts it would like. *layout* says
    how the members of a gang are to lie. *hosts* are the only hosts it may have, by id (empty: any); *min_isolation* is
    the least that they are to enforce (``isolation_words``); *gpu_topology* how close every two devices of a member are
    to be (``device_words``). Without GPUs, what else is said of them is dropped; so is
    the layout of one, and how close one device is.

    Raises BadRequest for amounts or a gang out of range.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 0
    gpu_milli: int = WHOLE_GPU_MILLI
    gpu_memory_mib: int = 0
    gpu_models: tuple[str, ...] = ()
    affinity_hard: tuple[str, ...] = ()
    affinity_soft: tuple[str, ...] = ()
    gang: int = 1
    layout: str = ""
    hosts: tuple[str, ...] = ()
    min_isolation: str = ""
    gpu_topology: str = ""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if min(self.cpu_milli, self.memory_mib, self.gpu_count, self.gpu_memory_mib) < 0:
            raise BadRequest("a request asks for less than nothing", asked=repr(self), hint="amounts are zero or more")
        if not 1 <= self.gang <= MAX_GANG:
            raise BadRequest(
                "a gang out of range", asked=f"{self.gang} members", hint=f"a gang has 1 to {MAX_GANG} members"
            )
        if not 1 <= self.gpu_milli <= WHOLE_GPU_MILLI:
            raise BadRequest(
                "a share of a GPU out of range", asked=f"{self.gpu_milli} thousandths", hint="1 to 1000 thousandths"
            )
        # One spelling for all that fit alike: they share a queue, and what is known of one is known of all.
        plain: dict[str, Any] = {}
        if not self.gpu_count:
            plain = {"gpu_milli": WHOLE_GPU_MILLI, "gpu_memory_mib": 0, "gpu_models": (), "affinity_hard": ()}
        if self.gpu_count < 2:
            plain["gpu_topology"] = ""
        if self.gang == 1:
            plain["layout"] = ""
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        # Queues are found by their demands in every pass: the hash is worth keeping.
        object.__setattr__(self, "_hash", hash(self._fields()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Demand], tuple[Any, ...]]:
        return Demand, self._fields()  # in another process the hash is another

    def _fields(self) -> tuple[Any, ...]:
        return (
            self.cpu_milli,
            self.memory_mib,
            self.gpu_count,
            self.gpu_milli,
            self.gpu_memory_mib,
            self.gpu_models,
            self.affinity_hard,
            self.affinity_soft,
            self.gang,
            self.layout,
            self.hosts,
            self.min_isolation,
            self.gpu_topology,
        )

    # -- spellings

    @classmethod
    def of_request(cls, asked: Resources) -> Demand:
        """The demand of an API request; a share of a GPU is rounded up to a thousandth, memory to a MiB."""
        gang = getattr(asked, "gang", 1)
        (count, milli), models = gpus_asked(asked.gpus), tuple(asked.gpu_models)
        if asked.gpu_profile:
            # An instance is a device whose model ends with its profile: older hosts place it, too.
            milli = share_of_profile(asked.gpu_profile)
            models = tuple(f"{model} MIG {asked.gpu_profile}".strip() for model in models or ("",))
        _check_isolation(asked)
        return cls(
            cpu_milli=round(asked.cpus * 1000),
            memory_mib=_mib(asked.memory_bytes),
            gpu_count=count,
            gpu_milli=milli,
            gpu_memory_mib=_mib(asked.gpu_memory_bytes),
            gpu_models=models,
            affinity_hard=tuple(asked.gpu_affinity),
            gang=gang,
            layout=APART if getattr(asked, "spread", False) else NEAR,
            min_isolation=asked.min_isolation,
            gpu_topology=asked.gpu_topology,
        )

    @classmethod
    def of(cls, resources: Mapping[str, Any]) -> Demand:
        """The demand of a record's ``resources``, also of an earlier version's; one object for equal ones."""
        get = resources.get
        return _known(
            int(get("cpu_milli", 0)),
            int(get("memory_mib", 0)),
            int(get("gpu_count", 0)),
            int(get("gpu_milli", 0)) or WHOLE_GPU_MILLI,
            int(get("gpu_memory_mib", 0)),
            tuple(sorted(get("gpu_models", ()))),
            tuple(sorted(get("gpu_affinity", ()))),
            int(get("gang", 1)),
            APART if get("spread", False) else NEAR,
            _names(get("hosts")),
            str(get("min_isolation", "")),
            _topology(get("gpu_topology")),
        )

    def to_record(self) -> ResourcesRecord:
        """The ``resources`` of a ledger record. Only a gang says its size."""
        record: ResourcesRecord = {
            "gpus": self.gpus,
            "gpu_count": self.gpu_count,
            "gpu_milli": self.gpu_milli if self.gpu_count else 0,
            "gpu_memory_mib": self.gpu_memory_mib,
            "gpu_models": list(self.gpu_models),
            "gpu_affinity": list(self.affinity_hard),
            "cpu_milli": self.cpu_milli,
            "memory_mib": self.memory_mib,
        }
        if self.gang > 1:
            record["gang"] = self.gang
        if self.apart:
            record["spread"] = True
        if self.hosts:
            record["hosts"] = list(self.hosts)
        if self.min_isolation:
            record["min_isolation"] = self.min_isolation
        if self.gpu_topology:
            record["gpu_topology"] = self.gpu_topology
        return record

    def arguments(self) -> dict[str, Any]:
        """The demand as the engine's ``place`` takes it, where devices have no UUIDs and models one name each."""
        found: dict[str, Any] = {"cpu_milli": self.cpu_milli, "memory_mib": self.memory_mib, "gang": self.gang}
        if self.gpu_count:
            found.update(gpu_count=self.gpu_count, gpu_milli=self.gpu_milli, gpu_memory_mib=self.gpu_memory_mib)
        if self.gpu_models:
            found["gpu_models"] = self.gpu_models
        if self.gpu_topology:
            found["gpu_topology"] = self.gpu_topology
        if self.affinity_soft:
            found["prefer_racks"] = self.affinity_soft
        return found

    # -- questions

    @property
    def gpus(self) -> float:
        """GPUs of each member: a share of one, or a whole number."""
        return self.gpu_count * self.gpu_milli / WHOLE_GPU_MILLI

    @property
    def apart(self) -> bool:
        """Whether no two members may share a node."""
        return self.layout == APART

    @property
    def total_gpu_milli(self) -> int:
        """Thousandths of GPUs that all its members take together."""
        return self.gang * self.gpu_count * self.gpu_milli

    def needs_at_least(self, other: Demand) -> bool:
        """Whether room for this one would be room for *other*: then it cannot fit where *other* did not."""
        return (
            self.gang >= other.gang
            and (self.apart or not other.apart or other.gang == 1)
            and self.gpu_count >= other.gpu_count
            and self.gpu_milli >= other.gpu_milli
            and self.gpu_memory_mib >= other.gpu_memory_mib
            and self.cpu_milli >= other.cpu_milli
            and self.memory_mib >= other.memory_mib
            and (not other.affinity_hard or self.affinity_hard == other.affinity_hard)
            and (not other.gpu_count or self.gpu_models == other.gpu_models)
            and (not other.hosts or self.hosts == other.hosts)
            and (not other.min_isolation or self.min_isolation == other.min_isolation)
            and (not other.gpu_topology or self._is_as_close(other))
        )

    def _is_as_close(self, other: Demand) -> bool:
        if not self.gpu_topology:
            return False
        return GPU_TOPOLOGIES.index(self.gpu_topology) <= GPU_TOPOLOGIES.index(other.gpu_topology)


@lru_cache(maxsize=KNOWN_MAX)
def _known(
    cpu_milli: int,
    memory_mib: int,
    gpu_count: int,
    gpu_milli: int,
    gpu_memory_mib: int,
    gpu_models: tuple[str, ...],
    affinity_hard: tuple[str, ...],
    gang: int,
    layout: str,
    hosts: tuple[str, ...],
    min_isolation: str,
    gpu_topology: str,
) -> Demand:
    gpus = gpu_count, gpu_milli, gpu_memory_mib, gpu_models, affinity_hard
    rest: dict[str, Any] = {"layout": layout, "hosts": hosts, "min_isolation": min_isolation}
    rest["gpu_topology"] = gpu_topology
    return Demand(cpu_milli, memory_mib, *gpus, gang=gang, **rest)


@dataclass(frozen=True, slots=True)
class DemandEdit:
    """What is to be another of a demand, in the units of requests: GPUs, bytes, CPUs. ``None``: it stays."""

    gpus: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_models: tuple[str, ...] | None = None
    cpus: float | None = None
    memory_bytes: int | None = None

    def of(self, demand: Demand) -> Demand:
        """*demand* with that. Without GPUs, what was said of them is dropped.

        Raises BadRequest for what is said of GPUs that it does not ask for, and as ``Demand`` does.
        """
        named: dict[str, Any] = {}
        if self.gpus is not None:
            named["gpu_count"], named["gpu_milli"] = gpus_asked(self.gpus)
        if self.gpu_memory_bytes is not None:
            named["gpu_memory_mib"] = _mib(self.gpu_memory_bytes)
        if self.gpu_models is not None:
            named["gpu_models"] = tuple(sorted(self.gpu_models))
        if self.cpus is not None:
            named["cpu_milli"] = round(self.cpus * 1000)
        if self.memory_bytes is not None:
            named["memory_mib"] = _mib(self.memory_bytes)
        if not named.get("gpu_count", demand.gpu_count) and (self.gpu_memory_bytes or self.gpu_models):
            raise BadRequest(
                "it asks for no GPU",
                asked="memory or models of GPUs",
                found="gpus=0",
                hint="say how much of a GPU as well: gpus=0.25 or gpus=1",
            )
        return replace(demand, **named)


def gpus_asked(gpus: float) -> tuple[int, int]:
    """So many devices, and so many thousandths of each, as *gpus* of a request has them."""
    return 0 if gpus == 0 else max(1, int(gpus)), math.ceil(min(1.0, gpus or 1.0) * WHOLE_GPU_MILLI)


def _check_isolation(asked: Resources) -> None:
    """Raise BadRequest for a limit that is to be enforced on what is not asked for, and so not limited."""
    wanted = wanted_parts(asked.min_isolation)
    for aspect, field_, given in (
        ("memory", "memory", asked.memory_bytes),
        ("cpu", "cpus", asked.cpus),
        (
            "gpu_memory",
            "gpus and gpu_memory",
            asked.gpus and (asked.gpu_profile or asked.gpu_memory_bytes or asked.gpus >= 1),
        ),
    ):
        if wanted.get(aspect, NONE) != NONE and not given:
            raise BadRequest(
                f"min_isolation: nothing limits its {aspect}, as it asks for none",
                asked=f"{aspect}={wanted[aspect]}",
                hint=f"say how much: {field_}",
            )


def _names(value: object) -> tuple[str, ...]:
    """Names of hosts in a record; what hosts of before took unread, under that key, may be anything."""
    return tuple(sorted(each for each in value if isinstance(each, str))) if isinstance(value, list) else ()


def _topology(value: object) -> str:
    """How close devices are to be in a record; hosts of before took anything under that key, unread."""
    return value if isinstance(value, str) and value in GPU_TOPOLOGIES else ""


def share_of_profile(profile: str) -> int:
    """How much of a GPU a MIG instance of that *profile* (3g.40gb) counts as, in thousandths: so many sevenths.

    A GPU of all generations but the smaller ones has seven compute slices; on those with four, this is less than it is.
    """
    return min(MIG_SLICES, int(profile.partition("g")[0])) * WHOLE_GPU_MILLI // MIG_SLICES


def _mib(amount_bytes: int) -> int:
    return -(-amount_bytes // 2**20)
