from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Error(_message.Message):
    __slots__ = ("code", "message", "asked", "found", "hint", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    asked: str
    found: str
    hint: str
    details: _struct_pb2.Struct
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., asked: _Optional[str] = ..., found: _Optional[str] = ..., hint: _Optional[str] = ..., details: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SubmitJobRequest(_message.Message):
    __slots__ = ("command", "task_id", "name", "gpus", "gpu_memory_bytes", "gpu_models", "cpus", "memory_bytes", "priority", "env", "cwd", "max_execution_time_s", "retries", "depends_on", "labels", "more")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MODELS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    MAX_EXECUTION_TIME_S_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    command: _containers.RepeatedScalarFieldContainer[str]
    task_id: str
    name: str
    gpus: float
    gpu_memory_bytes: int
    gpu_models: _containers.RepeatedScalarFieldContainer[str]
    cpus: float
    memory_bytes: int
    priority: int
    env: _containers.ScalarMap[str, str]
    cwd: str
    max_execution_time_s: float
    retries: int
    depends_on: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    more: _struct_pb2.Struct
    def __init__(self, command: _Optional[_Iterable[str]] = ..., task_id: _Optional[str] = ..., name: _Optional[str] = ..., gpus: _Optional[float] = ..., gpu_memory_bytes: _Optional[int] = ..., gpu_models: _Optional[_Iterable[str]] = ..., cpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., priority: _Optional[int] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[str] = ..., max_execution_time_s: _Optional[float] = ..., retries: _Optional[int] = ..., depends_on: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SubmitJobAnswer(_message.Message):
    __slots__ = ("job_id", "duplicate")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    duplicate: bool
    def __init__(self, job_id: _Optional[str] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id", "wait_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    wait_s: float
    def __init__(self, job_id: _Optional[str] = ..., wait_s: _Optional[float] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("state", "user", "limit", "cursor", "label")
    STATE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    state: str
    user: str
    limit: int
    cursor: str
    label: str
    def __init__(self, state: _Optional[str] = ..., user: _Optional[str] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class ListJobsAnswer(_message.Message):
    __slots__ = ("jobs", "total", "next")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    total: int
    next: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., total: _Optional[int] = ..., next: _Optional[str] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job_id", "name", "user_id", "kind", "command", "state", "priority", "resources", "submitted_at", "ended_at", "retries_left", "cancel_requested", "deadline", "depends_on", "labels", "error", "attempts", "unconfirmed")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    RETRIES_LEFT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    user_id: str
    kind: str
    command: _containers.RepeatedScalarFieldContainer[str]
    state: str
    priority: int
    resources: _struct_pb2.Struct
    submitted_at: float
    ended_at: float
    retries_left: int
    cancel_requested: bool
    deadline: float
    depends_on: _containers.RepeatedScalarFieldContainer[str]
    labels: _struct_pb2.Struct
    error: Error
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    unconfirmed: str
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., user_id: _Optional[str] = ..., kind: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., priority: _Optional[int] = ..., resources: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., submitted_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., retries_left: _Optional[int] = ..., cancel_requested: _Optional[bool] = ..., deadline: _Optional[float] = ..., depends_on: _Optional[_Iterable[str]] = ..., labels: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., unconfirmed: _Optional[str] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("number", "attempt_id", "host", "state", "gpu_uuids", "placed_at", "started_at", "ended_at", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    PLACED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    attempt_id: str
    host: str
    state: str
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    placed_at: float
    started_at: float
    ended_at: float
    error: Error
    def __init__(self, number: _Optional[int] = ..., attempt_id: _Optional[str] = ..., host: _Optional[str] = ..., state: _Optional[str] = ..., gpu_uuids: _Optional[_Iterable[str]] = ..., placed_at: _Optional[float] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job_id", "stream", "attempt", "rank", "after")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    stream: str
    attempt: int
    rank: int
    after: str
    def __init__(self, job_id: _Optional[str] = ..., stream: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("attempt", "offset", "data", "id")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    offset: int
    data: bytes
    id: str
    def __init__(self, attempt: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., id: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("after", "ids")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    after: int
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, after: _Optional[int] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("index", "at", "type", "changes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    index: int
    at: float
    type: str
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, index: _Optional[int] = ..., at: _Optional[float] = ..., type: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("kind", "id", "state", "more")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    id: str
    state: str
    more: _struct_pb2.Struct
    def __init__(self, kind: _Optional[str] = ..., id: _Optional[str] = ..., state: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterAnswer(_message.Message):
    __slots__ = ("name", "health", "ready", "can_commit", "problems", "hosts", "hosts_present", "gpus", "gpus_present", "gpu_allocated_milli", "gpu_capacity_milli", "jobs", "performance")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CAN_COMMIT_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_PRESENT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPUS_PRESENT_FIELD_NUMBER: _ClassVar[int]
    GPU_ALLOCATED_MILLI_FIELD_NUMBER: _ClassVar[int]
    GPU_CAPACITY_MILLI_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    PERFORMANCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    health: str
    ready: bool
    can_commit: bool
    problems: _containers.RepeatedScalarFieldContainer[str]
    hosts: int
    hosts_present: int
    gpus: int
    gpus_present: int
    gpu_allocated_milli: int
    gpu_capacity_milli: int
    jobs: _struct_pb2.Struct
    performance: _struct_pb2.Struct
    def __init__(self, name: _Optional[str] = ..., health: _Optional[str] = ..., ready: _Optional[bool] = ..., can_commit: _Optional[bool] = ..., problems: _Optional[_Iterable[str]] = ..., hosts: _Optional[int] = ..., hosts_present: _Optional[int] = ..., gpus: _Optional[int] = ..., gpus_present: _Optional[int] = ..., gpu_allocated_milli: _Optional[int] = ..., gpu_capacity_milli: _Optional[int] = ..., jobs: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., performance: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ListHostsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListHostsAnswer(_message.Message):
    __slots__ = ("hosts",)
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[Host]
    def __init__(self, hosts: _Optional[_Iterable[_Union[Host, _Mapping]]] = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("node_id", "hostname", "ip_address", "port", "incarnation", "health", "presence", "gpus", "cpu_milli", "memory_mib", "site", "url", "draining")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    IP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    hostname: str
    ip_address: str
    port: int
    incarnation: int
    health: str
    presence: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    cpu_milli: int
    memory_mib: int
    site: str
    url: str
    draining: bool
    def __init__(self, node_id: _Optional[str] = ..., hostname: _Optional[str] = ..., ip_address: _Optional[str] = ..., port: _Optional[int] = ..., incarnation: _Optional[int] = ..., health: _Optional[str] = ..., presence: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., cpu_milli: _Optional[int] = ..., memory_mib: _Optional[int] = ..., site: _Optional[str] = ..., url: _Optional[str] = ..., draining: _Optional[bool] = ...) -> None: ...

class ListGpusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGpusAnswer(_message.Message):
    __slots__ = ("gpus",)
    GPUS_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    def __init__(self, gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("device_id", "vendor", "model", "host", "index", "source", "memory_total_bytes", "memory_allocated_bytes", "memory_used_bytes", "allocated_milli", "share_milli", "temperature_celsius", "power_usage_watts", "utilization_percent", "status", "unfit", "jobs")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_MILLI_FIELD_NUMBER: _ClassVar[int]
    SHARE_MILLI_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_USAGE_WATTS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    vendor: str
    model: str
    host: str
    index: int
    source: str
    memory_total_bytes: int
    memory_allocated_bytes: int
    memory_used_bytes: int
    allocated_milli: int
    share_milli: int
    temperature_celsius: float
    power_usage_watts: float
    utilization_percent: float
    status: str
    unfit: str
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device_id: _Optional[str] = ..., vendor: _Optional[str] = ..., model: _Optional[str] = ..., host: _Optional[str] = ..., index: _Optional[int] = ..., source: _Optional[str] = ..., memory_total_bytes: _Optional[int] = ..., memory_allocated_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., allocated_milli: _Optional[int] = ..., share_milli: _Optional[int] = ..., temperature_celsius: _Optional[float] = ..., power_usage_watts: _Optional[float] = ..., utilization_percent: _Optional[float] = ..., status: _Optional[str] = ..., unfit: _Optional[str] = ..., jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class GetStateRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class ListStateRequest(_message.Message):
    __slots__ = ("prefix", "limit", "behind")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    limit: int
    behind: str
    def __init__(self, prefix: _Optional[str] = ..., limit: _Optional[int] = ..., behind: _Optional[str] = ...) -> None: ...

class ListStateAnswer(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[StateEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[StateEntry, _Mapping]]] = ...) -> None: ...

class StateEntry(_message.Message):
    __slots__ = ("key", "type", "value", "expires_at")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    key: str
    type: str
    value: _struct_pb2.Value
    expires_at: float
    def __init__(self, key: _Optional[str] = ..., type: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., expires_at: _Optional[float] = ...) -> None: ...

class PutStateRequest(_message.Message):
    __slots__ = ("key", "value", "type", "operation", "field", "ttl_s", "expected", "absent", "durability", "within_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: _struct_pb2.Value
    type: str
    operation: str
    field: str
    ttl_s: float
    expected: _struct_pb2.Value
    absent: bool
    durability: str
    within_s: float
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., type: _Optional[str] = ..., operation: _Optional[str] = ..., field: _Optional[str] = ..., ttl_s: _Optional[float] = ..., expected: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., absent: _Optional[bool] = ..., durability: _Optional[str] = ..., within_s: _Optional[float] = ...) -> None: ...

class WatchStateRequest(_message.Message):
    __slots__ = ("prefix", "initial", "after")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    initial: bool
    after: str
    def __init__(self, prefix: _Optional[str] = ..., initial: _Optional[bool] = ..., after: _Optional[str] = ...) -> None: ...

class StateEvent(_message.Message):
    __slots__ = ("event", "id", "entry")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    event: str
    id: str
    entry: StateEntry
    def __init__(self, event: _Optional[str] = ..., id: _Optional[str] = ..., entry: _Optional[_Union[StateEntry, _Mapping]] = ...) -> None: ...

class ListLocksRequest(_message.Message):
    __slots__ = ("prefix", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListLocksAnswer(_message.Message):
    __slots__ = ("locks", "total")
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    locks: _containers.RepeatedCompositeFieldContainer[Lock]
    total: int
    def __init__(self, locks: _Optional[_Iterable[_Union[Lock, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class Lock(_message.Message):
    __slots__ = ("name", "slots", "holders", "waiters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    slots: int
    holders: _containers.RepeatedCompositeFieldContainer[LockOwner]
    waiters: _containers.RepeatedCompositeFieldContainer[LockOwner]
    def __init__(self, name: _Optional[str] = ..., slots: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[LockOwner, _Mapping]]] = ..., waiters: _Optional[_Iterable[_Union[LockOwner, _Mapping]]] = ...) -> None: ...

class LockOwner(_message.Message):
    __slots__ = ("owner", "user_id", "since", "ttl_s", "token")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    owner: str
    user_id: str
    since: float
    ttl_s: float
    token: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, owner: _Optional[str] = ..., user_id: _Optional[str] = ..., since: _Optional[float] = ..., ttl_s: _Optional[float] = ..., token: _Optional[_Iterable[int]] = ...) -> None: ...

class AcquireLockRequest(_message.Message):
    __slots__ = ("name", "owner", "ttl_s", "slots", "wait_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    ttl_s: float
    slots: int
    wait_s: float
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., ttl_s: _Optional[float] = ..., slots: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class LockStanding(_message.Message):
    __slots__ = ("name", "owner", "held", "token", "position", "slots", "ttl_s", "expires_in_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    held: bool
    token: _containers.RepeatedScalarFieldContainer[int]
    position: int
    slots: int
    ttl_s: float
    expires_in_s: float
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., held: _Optional[bool] = ..., token: _Optional[_Iterable[int]] = ..., position: _Optional[int] = ..., slots: _Optional[int] = ..., ttl_s: _Optional[float] = ..., expires_in_s: _Optional[float] = ...) -> None: ...

class RenewLockRequest(_message.Message):
    __slots__ = ("name", "owner", "token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    token: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., token: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseLockRequest(_message.Message):
    __slots__ = ("name", "owner", "token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    token: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., token: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseLockAnswer(_message.Message):
    __slots__ = ("name", "owner", "released")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    released: bool
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., released: _Optional[bool] = ...) -> None: ...

class ListServicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListServicesAnswer(_message.Message):
    __slots__ = ("services", "url")
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[Service]
    url: str
    def __init__(self, services: _Optional[_Iterable[_Union[Service, _Mapping]]] = ..., url: _Optional[str] = ...) -> None: ...

class GetServiceRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ScaleServiceRequest(_message.Message):
    __slots__ = ("name", "replicas_min", "replicas_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_MIN_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    replicas_min: int
    replicas_max: int
    def __init__(self, name: _Optional[str] = ..., replicas_min: _Optional[int] = ..., replicas_max: _Optional[int] = ...) -> None: ...

class ChatRequest(_message.Message):
    __slots__ = ("model", "messages", "prompt", "more", "resume_s", "stream_id", "after")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    RESUME_S_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    model: str
    messages: _containers.RepeatedCompositeFieldContainer[_struct_pb2.Struct]
    prompt: str
    more: _struct_pb2.Struct
    resume_s: float
    stream_id: str
    after: str
    def __init__(self, model: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_struct_pb2.Struct, _Mapping]]] = ..., prompt: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., resume_s: _Optional[float] = ..., stream_id: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ChatEvent(_message.Message):
    __slots__ = ("stream_id", "id", "text", "chunk")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    id: str
    text: str
    chunk: _struct_pb2.Struct
    def __init__(self, stream_id: _Optional[str] = ..., id: _Optional[str] = ..., text: _Optional[str] = ..., chunk: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Service(_message.Message):
    __slots__ = ("name", "user_id", "state", "ready", "target", "replicas_min", "replicas_max", "revision", "problem", "replicas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_MIN_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_MAX_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    user_id: str
    state: str
    ready: int
    target: int
    replicas_min: int
    replicas_max: int
    revision: str
    problem: str
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, name: _Optional[str] = ..., user_id: _Optional[str] = ..., state: _Optional[str] = ..., ready: _Optional[int] = ..., target: _Optional[int] = ..., replicas_min: _Optional[int] = ..., replicas_max: _Optional[int] = ..., revision: _Optional[str] = ..., problem: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("job_id", "revision", "state", "host", "port", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    revision: str
    state: str
    host: str
    port: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., revision: _Optional[str] = ..., state: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[PackedDetail]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[PackedDetail, _Mapping]]] = ...) -> None: ...

class PackedDetail(_message.Message):
    __slots__ = ("type_url", "value")
    TYPE_URL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    type_url: str
    value: bytes
    def __init__(self, type_url: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
