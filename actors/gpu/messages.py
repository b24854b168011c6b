"""Messages that GPUCoordinator takes. Resources are the ``resources`` dict of a job record."""

from __future__ import annotations

from dataclasses import dataclass, field

from actorgrid.actors.ledger.record_types import ResourcesRecord

MIG_CHANGE_S = 60.0
"""How long whoever has a GPU cut waits for the answer: the ledger is told first, and the driver asked three times."""


@dataclass(frozen=True, slots=True)
class CheckFeasible:
    """Asks whether an empty cluster could serve this. Answer: None.

    Raises UnknownGpuModel, TooManyGpus, RequestTooLarge, BadRequest for device UUIDs that do not exist, and HostError
    while this host's devices are not known yet. With a ``deadline`` (seconds since the epoch) also whether it could be
    kept now, running for at most ``limit_s`` seconds: raises AdmissionRefused, where the scheduling policy knows
    deadlines.
    """

    resources: ResourcesRecord
    deadline: float | None = None
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Explain:
    """Asks why this does not fit now. Answer: the engine's ``explain()`` dict, with ``position`` for a queued job.

    For a job also ``depends_on`` (those still open), ``not_before`` and ``stands_aside`` (its user's quota is used up);
    ``host`` says what keeps all placing back, ``unfit`` [{"host", "gpu", "why"}] which devices take nothing new.
    """

    resources: ResourcesRecord
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """Asks for all devices with their latest readings. Answer: list of dicts (models.GPUDevice fields).

    A reading that is ``None`` has its reason in ``unsupported`` {reading: reason}; ``error`` says what is wrong
    with a device whose status is error. ``seen`` is the ledger's index the sender has seen; none older is told.
    """

    seen: int = 0
    everywhere: bool = False
    """With the readings of other hosts' devices, of those that answer soon; else they have none."""


@dataclass(frozen=True, slots=True)
class OwnReadings:
    """Asks what this host reads of its devices. Answer: by UUID the fields of ``device.Readings``, and ``score``."""


@dataclass(frozen=True, slots=True)
class OwnTotals:
    """Asks what this host's devices read together. Answer: ``device_totals.DeviceTotals``."""


@dataclass(frozen=True, slots=True)
class AcquireLease:
    """Asks for an allocation for a session, placed and committed, waiting at most ``wait_s`` seconds for room.

    Answer: the allocation record. Raises Overloaded when no room came free in time, QuotaExceeded when its user may
    never hold that much, or as CheckFeasible.
    """

    lease_id: str
    session_id: str
    resources: ResourcesRecord
    pool: str
    env: dict[str, str] = field(default_factory=dict)
    wait_s: float = 10.0
    user_id: str = "local"
    near: str = ""
    """A host that is tried first, because it is less loaded; empty: where the client is. A hint, no more."""

    @property
    def home(self) -> str:
        """The host where the session was opened: its client is there."""
        return self.session_id.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class RecentDecisions:
    """Asks for the latest committed decisions, newest first. Answer: dicts (models.SchedulingDecision fields)."""

    limit: int = 100


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """Asks how long placing took lately. Answer: {"p50_us", "p99_us", "count", "policy", "compiled"}."""


@dataclass(frozen=True, slots=True)
class JoinMps:
    """Asks how work that has a share of a GPU of this host is to begin, where ``gpus.mps`` is on.

    Answer: the pipe directory of the MPS daemon that it is to run under; empty: it runs under none. Asked again, it
    starts nothing twice. Raises HostError while this host's devices are not known yet.
    """

    work_id: str
    """Of the attempt, member or lease."""
    gpu_uuid: str
    user_id: str
    """Whose work it is: daemons are of one tenant each."""
    why_not: str = ""
    """Why it cannot run under one in any case; empty: it can."""
    uid: int = 0
    """The uid of its own that it has; 0: the agent's."""


@dataclass(frozen=True, slots=True)
class MigGpus:
    """Asks which GPUs of this host can be cut into MIG instances, and how they are (``MigControl.listed``)."""


@dataclass(frozen=True, slots=True)
class CreateMig:
    """Make a MIG instance in a GPU of this host. Answer: its UUID. Raises as ``MigControl.create``."""

    gpu: str
    profile: str


@dataclass(frozen=True, slots=True)
class DestroyMig:
    """Take away a MIG instance of this host, which no work has. Answer: None. Raises as ``MigControl.destroy``."""

    instance: str


@dataclass(frozen=True, slots=True)
class AmdGpus:
    """Asks which GPUs of AMD's this host can cut, and how they are (``AmdPartitions.listed``)."""


@dataclass(frozen=True, slots=True)
class SetAmdPartition:
    """Have a GPU of AMD's of this host be cut by a mode. Answer: None. Raises as ``AmdPartitions.set``."""

    gpu: str
    """Its place on the bus, without the function."""
    change: str
    """compute or memory."""
    mode: str
