"""The records by which manager, shims and workers know of each other's work: in the folder of an attempt or worker.

Plain maps, as msgpack has them. A folder belongs to the work as well, which runs under the same user and may write what
it likes there. So what is read is looked at (``spec_of``, ``status_of``, ``lease_of``), and what is no such record is
none. A field that an older version did not write is absent; one that is there is of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

from actorgrid.container_words import ContainerWish, is_container
from actorgrid.errors import ErrorRecord

from ..ledger.usage_records import UsageRecord
from .apart_records import ApartSpec

if TYPE_CHECKING:
    from actorgrid.actors.objects.records import StoreSpec  # not loaded: what it stands among is the store's

WHOLE_MAX = 2**53
"""No number of a record is larger: beyond, JSON and a double have not each of them."""


class ItemsSpec(TypedDict):
    """Where a step that is kept apart leaves its items (item_spool.py)."""

    path: str
    takers: str
    """The folder that says how far those are who take them."""


class FunctionSpec(TypedDict):
    """The one call of a function job."""

    payload_path: str
    """The file with the pickled call."""
    digest: str
    """The payload's SHA-256, by which it is checked before it is unpickled."""
    python: str
    """The minor version of Python that pickled it (``3.12``); empty: any."""
    inputs: dict[str, str]
    """The files with results of other jobs that its arguments stand for, by job."""
    max_result_bytes: int
    result_path: str
    objects: NotRequired[str]
    """Where the host's object store listens."""
    host_id: NotRequired[str]
    steps: NotRequired[list[list[int]]]
    """Of a graph, instead of the one call: each step's number, where in the payload its call is, and its size."""
    step_inputs: NotRequired[dict[str, list[str | int]]]
    """Where what other steps gave is, by their numbers: a file, where in it that begins, and its size."""
    live_inputs: NotRequired[list[int]]
    """The steps that still run, whose items it takes as they come."""
    items: NotRequired[ItemsSpec]
    """Where it leaves items of its own as they come, where that is not beside its result."""


class WorkerSpec(TypedDict):
    """A worker of a pool, for sessions."""

    worker_id: str
    pool: str
    number: int
    """Which of its pool's it is; shown in its title."""
    socket_path: str
    """Where clients come to it."""
    working_dirs: NotRequired[str]
    """The folder in which this host keeps working directories that were sent."""
    environments: NotRequired[EnvironmentLimits]
    objects: NotRequired[str]
    """The socket of the host's object store."""
    host_id: NotRequired[str]


class EnvironmentLimits(TypedDict):
    """Where a host keeps Python environments, and within which bounds."""

    folder: str
    count_max: int
    bytes_max: int
    build_s: float
    """How long one may take to be built."""


class EnvironmentSpec(EnvironmentLimits):
    """The Python environment that work asks for."""

    digest: str
    path: str
    """The file with its specification."""


class WorkingDirSpec(TypedDict):
    """The working directory that was sent with a job."""

    folder: str
    """The folder in which this host keeps them."""
    digest: str
    archive: str
    """The file to unpack it from."""
    own_cwd: NotRequired[str]
    """Where the attempt has a copy of its own; else all that have the same one share it."""


class OutputsSpec(TypedDict):
    """Which files are kept when a job's attempt ends."""

    paths: list[str]
    """As the job named them."""
    bytes_max: int
    folder: str
    """Where they are kept."""
    own_cwd: str
    """The attempt's own copy of the working directory that was sent with it."""


class CommandStepSpec(TypedDict):
    """What a command has to do with the graph that it is a step of."""

    tells: bool
    """Whether the last line that it prints is its word."""
    takes: list[list[str | int]]
    """Files of other steps that it finds in its directory: of each pack the path of the file that holds it, where in
    that it begins, and how long it is."""
    gives: bool
    """Whether its outputs are packed for others; then all of them have to be there."""
    bytes_max: int
    """Of what it gives."""


class CheckpointSpec(TypedDict):
    """How checkpoints of an attempt are made and had."""

    state: str
    """The file with the one that it begins with; empty: there is none."""
    folder: str
    """The directory whose content follows the job; empty: the work makes its checkpoints itself."""
    link: str
    """The path by which the work knows that directory."""
    every_s: float | None
    """Seconds from one to the next; ``None``: when the mark says that one is ready."""
    takes: bool
    """Whether it makes any: of a gang, rank 0 does."""


class SecretsSpec(TypedDict):
    """The secrets that work was given; their values are in no spec."""

    folder: str
    """The folder in memory with a file for each."""
    variables: dict[str, str]
    """Which of them are variables as well: the names of secrets by those."""


class ContainerSpec(TypedDict):
    """The container that a command runs in."""

    wish: ContainerWish
    """What the job asks for."""
    allowed: str
    """The host's setting ``work.containers``."""
    mounts: list[str]
    """Below which folders of the host something may be mounted."""
    runtime_env: NotRequired[dict[str, str]]
    """At ``full``: the variables of the runtime, which root runs; those of the work are told to the container alone."""
    name: str
    folder: str
    """The attempt's, which the container sees."""
    gpus: dict[str, list[str]]
    """The UUIDs of the granted devices, by vendor."""


class WorkSpec(TypedDict):
    """What a shim is told to run (``spec.msgpack``)."""

    v: int
    """The version of these specs and of the words on the control socket (``shim_link.SPEC_VERSION``)."""
    kind: str
    """``command``, ``function`` (one call), ``functions`` (a worker that serves such calls), ``worker`` (of a pool),
    ``objects`` (the host's object store)."""
    id: str
    """Of the attempt, or of the worker."""
    token: str
    """Who says it on the control socket is the agent."""
    title: str
    command: list[str]
    env: dict[str, str]
    cwd: str
    stdin: str | None
    """The file that it reads from; ``None``: nothing."""
    timeout_s: float | None
    grace_s: float
    """Between SIGTERM and SIGKILL, when it runs past its time."""
    max_output_bytes: int
    """Of each of its two streams, how much is kept."""
    memory_bytes: int
    """Of all its processes together; 0: no limit."""
    cpu_milli: NotRequired[int]
    """Thousandths of a processor that its cgroup holds it to, where there is one; missing, or 0: no limit."""
    device_memory: NotRequired[dict[str, int]]
    """Of a device's memory, by its address on the bus, what the kernel lets all its processes have, in bytes."""
    isolation_s: float
    """How long it may go on when its host has lost its lease."""
    control_path: str
    """The shim's control socket."""
    guard_path: str
    """The socket of the host's guard."""
    job_id: NotRequired[str]
    ledger_token: NotRequired[list[int]]
    """An attempt's fencing token: recovery epoch and log index."""
    served_by: NotRequired[str]
    """The worker of kind ``functions`` that this attempt is for."""
    function: NotRequired[FunctionSpec]
    worker: NotRequired[WorkerSpec]
    working_dir: NotRequired[WorkingDirSpec]
    environment: NotRequired[EnvironmentSpec | None]
    outputs: NotRequired[OutputsSpec]
    step: NotRequired[CommandStepSpec]
    checkpoint: NotRequired[CheckpointSpec]
    container: NotRequired[ContainerSpec]
    apart: NotRequired[ApartSpec]
    devices_denied: NotRequired[list[list[int]]]
    """Nodes of GPUs that are not its own: major and minor number of each."""
    objects: NotRequired[StoreSpec]
    secrets: NotRequired[SecretsSpec]
    pty: NotRequired[bool]
    """Whether the command has a terminal."""
    attempts_dir: NotRequired[str]
    """For ``functions``: the folder of the attempts that it serves."""
    calls_max: NotRequired[int]
    """For ``functions``: after so many it leaves."""


class CallSpec(TypedDict):
    """Of the spec of a function's attempt, what its process is told: not the token of its shim."""

    id: str
    job_id: str
    env: dict[str, str]
    cwd: str
    timeout_s: float | None
    function: FunctionSpec


class ServedCallSpec(CallSpec):
    """A call for a worker of kind ``functions``."""

    draft_path: str
    """Where its result is written, before it gets its name."""


class DroppedBytes(TypedDict):
    """Bytes of each stream that were over ``max_output_bytes``."""

    stdout: int
    stderr: int


class KeptOutputs(TypedDict):
    """What came of the outputs that a job asked for."""

    files: int
    bytes: int
    missing: list[str]
    """Those that were named and not there."""
    problem: str
    """Why not all that was there is kept; empty: it is."""
    digest: NotRequired[str]
    """Of a step of a graph: SHA-256 of the pack that it gives, in hex."""


class WorkStatus(TypedDict, total=False):
    """How work ended, by its shim (``status.msgpack``). What does not apply is ``None``."""

    reason: str
    """exited | cancelled | preempted | stopped | timed_out | memory | isolated | refused (it never started)"""
    exit_code: int | None
    signal: int | None
    oom_kills: int
    """After SIGKILL: how many processes of the host the kernel killed for want of memory meanwhile."""
    error: str
    """For ``refused``: why."""
    started_at: float
    ended_at: float
    max_rss_bytes: int | None
    cpu_s: float | None
    dropped: DroppedBytes
    result_bytes: int | None
    containment: str
    outputs: KeptOutputs
    unsynced_in: str
    """The boot of the machine until whose end this holds, where it was not synced."""


class WorkStarted(TypedDict, total=False):
    """Who took the work (``started``)."""

    pid: int
    """Of the shim."""
    boot_id: str
    """The machine's boot."""


class WorkerLease(TypedDict):
    """The lease that a pool's worker serves, or served last (``lease.msgpack``)."""

    lease_id: str
    session_id: str
    gpu_uuids: list[str]
    env: list[list[str]]
    """Pairs of a variable and its value."""
    secret: str
    """Its client says it."""
    stderr_from: NotRequired[int]
    """Where in the worker's output that of this lease begins."""
    stdout_from: NotRequired[int]


class AttemptEnd(TypedDict):
    """What the ledger is told of an attempt's end: the fields of ``EndAttempt`` that its host knows."""

    outcome: str
    charge: bool
    """Whether it counts against the job's retries."""
    error: ErrorRecord | None
    exit_code: NotRequired[int | None]
    signal: NotRequired[int | None]
    max_rss_bytes: NotRequired[int | None]
    cpu_s: NotRequired[float | None]
    result_bytes: NotRequired[int | None]
    started_at: NotRequired[float]
    """When it was started, where nothing told the ledger of that."""
    results: NotRequired[list[dict[str, Any]]]
    """Of steps of a graph: how each of them ended."""
    usage: NotRequired[UsageRecord]
    """What it used of its devices."""


Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return type(value) is str


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= WHOLE_MAX


def _signed(value: Any) -> bool:
    return type(value) is int and -WHOLE_MAX <= value <= WHOLE_MAX


def _number(value: Any) -> bool:
    return (type(value) is int or type(value) is float) and 0 <= value <= WHOLE_MAX  # a NaN is not


def _truth(value: Any) -> bool:
    return value is True or value is False


def _texts(value: Any) -> bool:
    return type(value) is list and all(type(each) is str for each in value)


def _pairs(value: Any) -> bool:
    return type(value) is list and all(_texts(each) and len(each) == 2 for each in value)


def _amounts(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str and _whole(each) for key, each in value.items())


def _text_map(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str and type(each) is str for key, each in value.items())


def _text_lists(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str and _texts(each) for key, each in value.items())


def _token(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and all(map(_whole, value))


def _calls(value: Any) -> bool:
    return type(value) is list and all(
        type(each) is list and len(each) == 3 and all(map(_whole, each)) for each in value
    )


def _places(value: Any) -> bool:
    return type(value) is dict and all(
        type(key) is str and type(each) is list and len(each) == 3 and _text(each[0]) and all(map(_whole, each[1:]))
        for key, each in value.items()
    )


def _place_list(value: Any) -> bool:
    return type(value) is list and _places({str(number): each for number, each in enumerate(value)})


def _nodes(value: Any) -> bool:
    return type(value) is list and all(
        type(each) is list and len(each) == 2 and all(map(_whole, each)) for each in value
    )


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _map(must: Mapping[str, Check], may: Mapping[str, Check] = {}) -> Check:
    return lambda value: type(value) is dict and _fits(value, must, may)


def _fits(fields: dict[Any, Any], must: Mapping[str, Check], may: Mapping[str, Check]) -> bool:
    """Whether all of *must* is there, and what is there of both is as it must be. Others are a newer version's."""
    return all(name in fields and check(fields[name]) for name, check in must.items()) and all(
        check(fields[name]) for name, check in may.items() if name in fields
    )


_LIMITS = {"folder": _text, "count_max": _whole, "bytes_max": _whole, "build_s": _number}
_FUNCTION = {
    "payload_path": _text,
    "digest": _text,
    "python": _text,
    "inputs": _text_map,
    "max_result_bytes": _whole,
    "result_path": _text,
}
_FUNCTION_MAY = {
    "steps": _calls,
    "step_inputs": _places,
    "objects": _text,
    "host_id": _text,
    "items": _map({"path": _text, "takers": _text}),
}
_WORKER = {"worker_id": _text, "pool": _text, "number": _whole, "socket_path": _text}
_STORE = {"socket_path": _text, "host_id": _text, "folder": _text, "memory_bytes": _whole, "disk_bytes": _whole}
_OWN = {"sockets": _map({"at": _text, "own": _text}), "own": _texts, "environments": _text}
_OF_STEPS = {"inputs": _text_map, "takers": _truth}
_APART_MAY = {**_OWN, **_OF_STEPS, "secrets": _text, "shared_memory": _text, "shared_memory_bytes": _whole}
_APART = {
    "level": _text,
    "hidden": _texts,
    "no_new_privs": _truth,
    "uid": _whole,
    "attempt": _text,
    "read": _texts,
    "gang": _truth,
}
_SPEC_MUST = {
    "v": _whole,
    "kind": _text,
    "id": _text,
    "token": _text,
    "env": _text_map,
    "control_path": _text,
    "isolation_s": _number,
    "timeout_s": _or_none(_number),
    "memory_bytes": _whole,
}
_SPEC_MAY = {
    "title": _text,
    "cpu_milli": _whole,
    "command": _texts,
    "cwd": _text,
    "stdin": _or_none(_text),
    "grace_s": _number,
    "max_output_bytes": _whole,
    "guard_path": _text,
    "device_memory": _amounts,
    "job_id": _text,
    "ledger_token": _token,
    "served_by": _text,
    "function": _map(_FUNCTION, _FUNCTION_MAY),
    "worker": _map(_WORKER, {"working_dirs": _text, "environments": _map(_LIMITS), "objects": _text, "host_id": _text}),
    "working_dir": _map({"folder": _text, "digest": _text, "archive": _text}, {"own_cwd": _text}),
    "environment": _or_none(_map({**_LIMITS, "digest": _text, "path": _text})),
    "checkpoint": _map({"state": _text, "folder": _text, "link": _text, "every_s": _or_none(_number), "takes": _truth}),
    "outputs": _map({"paths": _texts, "bytes_max": _whole, "folder": _text, "own_cwd": _text}),
    "step": _map({"tells": _truth, "takes": _place_list, "gives": _truth, "bytes_max": _whole}),
    "container": _map(
        {"wish": is_container, "allowed": _text, "mounts": _texts, "name": _text, "folder": _text, "gpus": _text_lists}
    ),
    "objects": _map(_STORE),
    "secrets": _map({"folder": _text, "variables": _text_map}),
    "apart": _map(_APART, _APART_MAY),
    "devices_denied": _nodes,
    "pty": _truth,
    "attempts_dir": _text,
    "calls_max": _whole,
}
_OF_KIND: dict[str, Mapping[str, Check]] = {
    "command": {"job_id": _text, "ledger_token": _token},
    "function": {"job_id": _text, "ledger_token": _token, "function": _map(_FUNCTION, _FUNCTION_MAY)},
    "functions": {},
    "worker": {"worker": _map(_WORKER)},
    "objects": {"objects": _map(_STORE)},
}
_STATUS = {
    "reason": _text,
    "exit_code": _or_none(_signed),
    "signal": _or_none(_signed),
    "oom_kills": _whole,
    "error": _text,
    "started_at": _number,
    "ended_at": _number,
    "max_rss_bytes": _or_none(_whole),
    "cpu_s": _or_none(_number),
    "dropped": _map({"stdout": _whole, "stderr": _whole}),
    "result_bytes": _or_none(_whole),
    "containment": _text,
    "outputs": _map({"files": _whole, "bytes": _whole, "missing": _texts, "problem": _text}, {"digest": _text}),
    "unsynced_in": _text,
}
_LEASE_MUST = {"lease_id": _text, "session_id": _text, "gpu_uuids": _texts, "env": _pairs, "secret": _text}
_LEASE_MAY = {"stderr_from": _whole, "stdout_from": _whole}


def spec_of(fields: object) -> WorkSpec | None:
    """The spec that *fields* are, or ``None``."""
    if type(fields) is not dict or not _fits(fields, _SPEC_MUST, _SPEC_MAY):
        return None
    of_kind = _OF_KIND.get(fields["kind"])
    return cast("WorkSpec", fields) if of_kind is not None and _fits(fields, of_kind, {}) else None


def lost_spec(attempt_id: str) -> WorkSpec:
    """What is said of an attempt whose spec cannot be read any more."""
    return {
        "v": 0,
        "kind": "command",
        "id": attempt_id,
        "token": "",
        "title": "",
        "command": [],
        "env": {},
        "cwd": "/",
        "stdin": None,
        "timeout_s": None,
        "grace_s": 0.0,
        "max_output_bytes": 0,
        "memory_bytes": 0,
        "isolation_s": 0.0,
        "control_path": "",
        "guard_path": "",
        "job_id": "",
    }


def call_of(spec: WorkSpec) -> CallSpec:
    """What the process of a function's attempt is told of its *spec*."""
    return {
        "id": spec["id"],
        "job_id": spec["job_id"],
        "env": spec["env"],
        "cwd": spec["cwd"],
        "timeout_s": spec["timeout_s"],
        "function": spec["function"],
    }


def uid_of(spec: WorkSpec | None) -> int:
    """The uid of work that has one of its own; 0: the agent's."""
    return spec["apart"]["uid"] if spec is not None and "apart" in spec else 0


def status_of(fields: object) -> WorkStatus | None:
    """The status that *fields* are, or ``None``."""
    return cast("WorkStatus", fields) if type(fields) is dict and _fits(fields, {}, _STATUS) else None


def started_of(fields: object) -> WorkStarted:
    """What *fields* say of who took the work; empty where they say nothing."""
    known = type(fields) is dict and _fits(fields, {"pid": _whole, "boot_id": _text}, {})
    return cast("WorkStarted", fields) if known else {}


def lease_of(fields: object) -> WorkerLease | None:
    """The lease that *fields* are, or ``None``."""
    fits = type(fields) is dict and _fits(fields, _LEASE_MUST, _LEASE_MAY)
    return cast("WorkerLease", fields) if fits else None
