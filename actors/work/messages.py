"""What WorkerManager takes. It learns what to run from the ledger: grants are its orders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttachLease:
    """Wait for the worker of a granted session lease. Answer: dict of models.LeaseGrant fields."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class FindWorker:
    """Ask where the worker of a session lease listens. Answer: the path of its socket on this host.

    Raises UnknownAllocation when the lease has no worker (any more).
    """

    lease_id: str


@dataclass(frozen=True, slots=True)
class FindChannel:
    """Ask where people come to an attempt that runs on this host. Answer: a FoundChannel, as plain values.

    Raises JobNotRunning when it does not run here (any more), NotSupported when it was started by an earlier version.
    """

    attempt_id: str


@dataclass(frozen=True, slots=True)
class DetachLease:
    """End a session lease: its worker lets go of the devices first, and only then is the lease released.

    Answer: None, once the ledger released it. Asking for a lease that is gone already is harmless. *cancelled*:
    somebody wants what runs under it ended: the worker is not asked to let go, it gets SIGTERM, and SIGKILL after
    its grace.
    """

    lease_id: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class LeaseOutput:
    """What the worker of a lease wrote under it. Answer: {"exists", "data", "size"}, from *offset* on, at most *limit*
    bytes; output of the leases that the worker served before is not in it. Raises BadRequest for another stream."""

    lease_id: str
    stream: str
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class TellWorkerEnd:
    """Ask how the worker that served a lease ended. Answer: a WorkerEnding."""

    worker_id: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class ObjectStoreWanted:
    """A session was opened here: have the object store run. A cast."""


@dataclass(frozen=True, slots=True)
class ReportObjects:
    """Ask what the object store holds. Answer: a dict, empty while there is no store (``ObjectStoreCore.spaces``)."""

    objects_max: int


@dataclass(frozen=True, slots=True)
class ListAttempts:
    """List the attempts and workers on this host.

    Answer: list of dicts (id, kind, state, pid, shim_pid, pool, gpus).
    """


@dataclass(frozen=True, slots=True)
class OwnersOf:
    """Ask whose work these processes of this host are.

    Answer: by pid the id of the attempt, member or lease, empty for nobody's; those that are gone are left out.
    """

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LimitableDevices:
    """Ask of which devices the kernel can limit the memory of work on this host.

    Answer: their addresses on the bus; ``None``: it is not known yet what work is kept in.
    """


@dataclass(frozen=True, slots=True)
class EndOverdrawn:
    """End at once the work that took more memory of a device than it was granted. Answer: whether it ran."""

    work_id: str
    gpu_index: int
    used_mib: int
    granted_mib: int


@dataclass(frozen=True, slots=True)
class EndUngranted:
    """End a process that holds a device without a grant, if it still is what it was taken for.

    Answer: why it is left alone; empty: it was signalled.
    """

    pid: int
    work_id: str
    """The ended work that it is of; empty: nobody's."""
    since_s: float
    """When it was first seen, on CLOCK_BOOTTIME."""
    hard: bool
    """By SIGKILL; else by SIGTERM."""


@dataclass(frozen=True, slots=True)
class EndOverheated:
    """End at once the work that runs on a device which is about to switch itself off. Answer: whether it ran."""

    work_id: str
    gpu_index: int
    celsius: int


@dataclass(frozen=True, slots=True)
class EndIdle:
    """End the work that has left its devices idle for *idle_s*. Answer: whether it ran."""

    work_id: str
    idle_s: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a sample of a device shows that usage is counted by. What is ``None`` is not told, by ``no_...``."""

    uuid: str
    memory_used_mib: int | None
    energy_millijoules: int | None
    """The driver's counter."""
    power_watts: float | None
    lists_processes: bool
    """Whether it is known which processes have memory on it."""
    no_memory: str = ""
    no_energy: str = ""


@dataclass(frozen=True, slots=True)
class DevicesSampled:
    """Devices of this host were sampled. A cast. *by_work_mib*: what work has of them, by its id and the UUID."""

    devices: tuple[DeviceUse, ...]
    by_work_mib: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class ReadWorkUsage:
    """Ask what work of this host has held and used since *since*, seconds since the epoch.

    Answer: {rows, kept_since}: rows as ``usage_rows`` has them, by the words of *by* (``usage_rows.GROUPS``).
    """

    by: str
    since: float
    user_id: str = ""
    """Whose work; empty: all."""


@dataclass(frozen=True, slots=True)
class StartDelay:
    """Ask what an attempt that is placed here and has not begun waits for.

    Answer: {waits_for: a text for people, empty when nothing is known; left_s: until it is given back, or None}.
    """

    attempt_id: str


@dataclass(frozen=True, slots=True)
class ContainmentAsked:
    """Ask what work is kept in on this host. Answer: its kind (containment.KINDS); None while that is tried out."""


@dataclass(frozen=True, slots=True)
class IsolationAsked:
    """Ask how this host keeps work apart. Answer: a KeptApartRecord, once that has been tried. Raises WorkerLost."""


@dataclass(frozen=True, slots=True)
class EndAllWork:
    """Stop every attempt and worker in order (SIGTERM, grace, SIGKILL). Answer: how many were stopped.

    A job whose own grace is longer has that.
    """

    grace_s: float = 5.0
