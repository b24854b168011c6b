"""Every error a user can catch, in one place.

* ActorGridError
  + BadRequest (also a ValueError)
    - MalformedBody
    - BodyTooLarge
    - CommandTooLarge
    - UnknownGpuModel
    - TooManyGpus
    - RequestTooLarge
    - UnpicklableFunction
    - AmbiguousKeyword
    - UnknownPolicy
    - MalformedJoinToken
    - InvalidSchedule
    - UnknownTarget
    - TargetNotAllowed
    - InvalidWork
    - InvalidTimeline
    - ItemTooLarge
    - NotAService
    - InvalidGraph
      * CyclicGraph
      * MissingProducer
      * UnsatisfiableCost
      * UnboundedLoop
    - NotATerminal
  + ConfigError
    - MalformedConfig
    - UnknownSetting
    - InvalidSetting
    - SettingNotLive
  + NotFound
    - UnknownJob
    - UnknownKey
    - UnknownAllocation
    - UnknownSession
    - UnknownSchedule
    - UnknownService
    - ResultGone
    - AuditGone
    - ObjectLost
    - NotARegularFile
    - NoSuchChild
    - PortNotOpen
  + WrongToken
  + NotAllowed
  + TrustError
    - CertificateRefused
    - StatementRefused
    - WrongCluster
    - HostRemoved
    - UnknownJoinToken
    - JoinTokenExpired
    - JoinTokenUsed
    - JoinTokenRevoked
  + HostError
    - AlreadyRunning
    - PortInUse
    - DataDirUnusable
    - HostUnreachable
      * ClientClosed (also a RuntimeError)
    - HostIsolated
    - StartFailed
    - KeyExposed
    - KeyUnusable
  + StorageError
    - DiskFull
    - AuditBroken
    - LogCorrupted
    - LogFailed
    - LedgerDiverged
    - LedgerTooNew
  + LedgerRefused
    - Overcommit
    - QuotaExceeded
    - StaleToken
    - StaleIncarnation
    - HostsTooOld
    - NotAVoter
    - WrongState
      * JobNotRunning
    - LockHeld
      * LockTimeout
    - LockLost
    - LockSlotsDiffer
  + PlacementError
    - UnknownNode
    - DuplicateNode
    - UnknownPlacement
    - AdoptRefused
    - AllocatorStalled
    - InvalidBlock
  + DeviceError
    - NoDeviceDriver
    - DeviceCallFailed
    - CrossVendorTransferError
  + Overloaded
    - TooManyRequests
    - QueueFull
    - TooManySessions
    - MailboxFull
    - TooManyActors
    - OutOfDeviceMemory
    - NoRoomForNestedTask
    - NoSuitableTarget
    - NamespaceFull
    - ServiceBusy
    - ServiceLoading
    - ServiceEnding
    - ObjectStoreFull
  + ServingError
    - WrongResultLength
    - ExecutorDied
    - ItemExpired
    - WrongAnswer
    - AnswerBroken
  + AdmissionRefused
  + StateTypeConflict
  + StateCompareFailed
  + SafetyViolated
  + ActorError
    - CallTimeout
    - ReceiveTimeout (also a TimeoutError)
    - NoSuchActor
    - ActorDown
    - InvalidChildSpec
    - ChildExists
    - NameTaken
    - NotSupported
    - NotLeader
    - NoQuorum
    - NotReplicated
    - RestartIntensityExceeded
  + TransportError
    - FrameTooLarge
    - PeerRefused
    - PeerGone
    - MalformedMessage
  + TaskError
    - TaskFailed
    - TaskCancelled
    - TaskTimedOut
    - WorkerLost
      * WorkerOverMemory (also a MemoryLimitExceeded)
      * WorkerOverDisk (also a DiskLimitExceeded)
      * HostLost
      * ActorDied
        + ActorRestarted
    - MemoryLimitExceeded (also a MemoryError)
    - DiskLimitExceeded
    - GpuIdle
    - UnpicklableResult
    - PythonMismatch
    - EnvironmentFailed
    - ContainerFailed
    - IsolationNotGiven
    - DependencyFailed
    - InputLost
    - StepFailed
    - StepSkipped
    - OutputMissing
    - StoppedEarly
    - OutsideTask

Each error says what was asked, what was found and what to try (``asked``, ``found``, ``hint``); all
three cross HTTP and the command line unchanged. ``http_status`` and ``exit_code`` are stable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict


class ErrorRecord(TypedDict):
    """An error in plain values, for JSON and msgpack: what crosses HTTP, links and the ledger."""

    code: str
    """The name of its class, which says what happened."""
    message: str
    """What happened, as a sentence."""
    asked: str
    """What was wanted; may be empty."""
    found: str
    """What there was instead; may be empty."""
    hint: str
    """What to try; may be empty."""
    details: dict[str, Any]
    """Further plain values by name: of a class that has attributes of its own, these."""


class ActorGridError(Exception):
    """Base of every error raised on purpose.

    ``asked`` is what the caller wanted, ``found`` what the world offered, ``hint`` the next step;
    each may be empty. ``details`` holds further plain values (str, int, float, bool, list, dict).
    """

    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "", *, asked: str = "", found: str = "", hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.asked = asked
        self.found = found
        self.hint = hint
        self.details = details

    @property
    def code(self) -> str:
        """The stable name of the condition: the class name."""
        return type(self).__name__

    def __str__(self) -> str:
        parts = [self.message or self.code]
        if self.asked:
            parts.append(f"asked: {self.asked}")
        if self.found:
            parts.append(f"found: {self.found}")
        if self.hint:
            parts.append(f"try: {self.hint}")
        return "; ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (error_from_dict, (self.to_dict(),))

    def to_dict(self) -> ErrorRecord:
        """Plain values only, for JSON and msgpack."""
        return {
            "code": self.code,
            "message": self.message,
            "asked": self.asked,
            "found": self.found,
            "hint": self.hint,
            "details": self.details,
        }


class BadRequest(ActorGridError, ValueError):
    """The request cannot be served as written; asking again unchanged gives the same answer."""

    http_status = 400
    exit_code = 2


class MalformedBody(BadRequest):
    """The body is not the JSON or msgpack it claims to be, or has wrong fields."""


class BodyTooLarge(BadRequest):
    """The body is over the configured limit."""

    http_status = 413


class CommandTooLarge(BadRequest):
    """The command, or its environment, is larger than the system can give to a process."""


class UnknownGpuModel(BadRequest):
    """No host has, or ever had, a GPU of that model."""


class TooManyGpus(BadRequest):
    """More GPUs (or GPU memory) than exist on any host that could serve the request."""


class RequestTooLarge(BadRequest):
    """More CPU or host memory than any host has in all."""


class UnpicklableFunction(BadRequest):
    """The function or an argument cannot be sent to another process."""


class AmbiguousKeyword(BadRequest):
    """A keyword that is an option of the task and a parameter of its function: it must be said which is meant."""


class UnknownPolicy(BadRequest):
    """No placement policy of that name is registered."""


class MalformedJoinToken(BadRequest):
    """The text is not a join token, or a damaged one."""


class InvalidGraph(BadRequest):
    """A graph of steps that cannot be run as it is written."""


class InvalidSchedule(BadRequest):
    """When something is to be due cannot be understood, or is never: a cron expression, a time zone, a time."""


class InvalidTimeline(BadRequest):
    """A file is no timeline of a kind that is read here, or larger than is read."""


class InvalidWork(BadRequest):
    """Work of a type that there is not, with arguments that its schema does not take (``details["paths"]`` names them),
    or for which something is missing where it runs."""


class ItemTooLarge(BadRequest):
    """A request to a batched method has more rows than a batch may have."""


class NotAService(BadRequest):
    """What was to be served is no class, cannot be found or loaded, or has nothing to serve."""


class UnknownTarget(BadRequest):
    """There is no target of that name for notifications, or it cannot be one."""


class TargetNotAllowed(BadRequest):
    """What a notification was to be sent to is out of bounds here: an address that the operator has not allowed, mail
    where none is sent."""


class CyclicGraph(InvalidGraph):
    """Steps of a graph wait for each other in a circle; ``details["circle"]`` names them in order."""


class MissingProducer(InvalidGraph):
    """A step takes from another that is not in the graph."""


class UnboundedLoop(InvalidGraph):
    """A loop of a graph does not say how many rounds it has at most."""


class UnsatisfiableCost(InvalidGraph):
    """A step of a graph needs what no host could give it; ``details`` name the step and a path to it."""


class NotATerminal(BadRequest):
    """A terminal is needed, of the job or of the person, where there is none."""


class ConfigError(ActorGridError):
    """The configuration is refused; nothing was changed."""

    http_status = 400
    exit_code = 2


class MalformedConfig(ConfigError):
    """A configuration file is not valid YAML of the expected shape."""


class UnknownSetting(ConfigError):
    """No setting has that name."""


class InvalidSetting(ConfigError):
    """The value does not fit the setting."""


class SettingNotLive(ConfigError):
    """The setting exists, but takes effect only at the next start."""

    http_status = 409


class NotFound(ActorGridError):
    """What was named does not exist (any more)."""

    http_status = 404
    exit_code = 4


class UnknownJob(NotFound):
    """No job has that id."""


class UnknownKey(NotFound):
    """The shared state has no such key."""


class UnknownAllocation(NotFound):
    """No live allocation has that id."""


class UnknownSession(NotFound):
    """The session was never opened, was closed, or was not renewed in time."""


class UnknownService(NotFound):
    """There is no service of that name."""


class UnknownSchedule(NotFound):
    """There is no schedule of that name."""


class ResultGone(NotFound):
    """The job ended, but its result is past the retention limit."""

    http_status = 410


class AuditGone(NotFound):
    """The records are past the bound of the audit log; the roots of their subtrees are kept."""

    http_status = 410


class ObjectLost(NotFound):
    """An object of the store is no more: its owner's session has ended, or its store or its only host is gone."""

    http_status = 410


class NotARegularFile(NotFound):
    """Where a file of an attempt belongs, its work has put something else: a FIFO, a link, a directory, a device."""

    http_status = 409


class NoSuchChild(NotFound):
    """The supervisor has no child of that id."""


class PortNotOpen(NotFound):
    """The job does not listen on that port."""


class WrongToken(ActorGridError):
    """The bearer token is missing or wrong."""

    http_status = 401
    exit_code = 3


class NotAllowed(ActorGridError):
    """Who asks is known, and may not do this: it takes the host's token or an API key."""

    http_status = 403
    exit_code = 3


class TrustError(ActorGridError):
    """What was shown does not make its bearer one of this cluster; nothing was given out and nothing was changed."""

    http_status = 403
    exit_code = 3


class CertificateRefused(TrustError):
    """A certificate, or a request for one, is not what this cluster's authority issues."""


class StatementRefused(TrustError):
    """Who votes was not stated by the cluster's authority for this host and in answer to its question, or is older
    than what it has been told."""


class WrongCluster(TrustError):
    """It is valid, for another cluster."""


class HostRemoved(TrustError):
    """This host left its cluster, or was removed: nobody there takes it for a member."""


class UnknownJoinToken(TrustError):
    """No join token of that id was made here, or its secret is not the one it was made with."""


class JoinTokenExpired(TrustError):
    """The join token's time is over."""


class JoinTokenUsed(TrustError):
    """The join token has let in as many hosts as it was made for."""


class JoinTokenRevoked(TrustError):
    """Somebody took the join token back."""


class HostError(ActorGridError):
    """The host agent cannot do that here and now."""

    http_status = 503
    exit_code = 5


class AlreadyRunning(HostError):
    """Another agent holds this data directory."""


class PortInUse(HostError):
    """The port the agent was told to serve on is taken."""


class DataDirUnusable(HostError):
    """The data directory cannot be made, read or locked, or others can read it."""


class HostUnreachable(HostError):
    """No agent answers there."""


class ClientClosed(HostUnreachable, RuntimeError):
    """The client was closed or shut down. A RuntimeError, as Python's own executors raise."""


class HostIsolated(HostError):
    """This host has not been confirmed by the cluster's leader for a while: it starts nothing new."""


class StartFailed(HostError):
    """A part of the host did not come up; the message says which and why."""


class KeyExposed(HostError):
    """Others than its owner can read or replace a private key; it is not used."""


class KeyUnusable(HostError):
    """Keys or certificates of this host are missing, damaged, or do not belong together."""


class StorageError(ActorGridError):
    """Durable storage refused."""

    http_status = 507
    exit_code = 6


class DiskFull(StorageError):
    """No room for new work; everything accepted is kept and goes on."""


class LogCorrupted(StorageError):
    """A record of the ledger's log fails its checksum: the ledger stays down for this boot."""


class LogFailed(StorageError):
    """A write or fsync of the log failed: the ledger stays down for this boot."""


class AuditBroken(StorageError):
    """An audit log, an export of it or a signed head is not what it says: a record was changed, cut out or moved."""


class LedgerDiverged(StorageError):
    """This host's copy of the ledger is not what the others have; it takes no further part."""


class LedgerTooNew(StorageError):
    """The ledger holds commands of a later version than this program: it must not go on by leaving them out."""


class LedgerRefused(ActorGridError):
    """The ledger's guard refused the command; state is unchanged."""

    http_status = 409


class SafetyViolated(ActorGridError):
    """A simulated run did what may never happen; ``details["checker"]`` names the property."""


class Overcommit(LedgerRefused):
    """The grant would give out more of a device or host than it has."""


class QuotaExceeded(LedgerRefused):
    """The user would hold more than the quota allows at once."""

    exit_code = 2


class StaleToken(LedgerRefused):
    """The command carries a fencing token older than the current one."""


class StaleIncarnation(LedgerRefused):
    """The command names an incarnation of a host that is gone."""


class HostsTooOld(LedgerRefused):
    """Some hosts of the cluster run a version that does not know this command yet."""


class NotAVoter(LedgerRefused):
    """What gives rights is proposed by hosts that vote, and this one does not; nothing was proposed."""


class WrongState(LedgerRefused):
    """The job or allocation is not in a state that allows the command."""


class JobNotRunning(WrongState):
    """Nothing of the job runs just now: it waits, is being prepared, or has ended."""


class LockHeld(LedgerRefused):
    """Others hold the lock, and the request was not to wait for it."""

    exit_code = 7


class LockTimeout(LockHeld):
    """Others held the lock for as long as the request was to wait for it."""


class LockLost(LedgerRefused):
    """The lock is not held any more by who thought so: its lease ran out, or it was released or broken."""

    exit_code = 8


class LockSlotsDiffer(LedgerRefused):
    """Somebody holds the lock, or waits for it, with another number of slots."""

    exit_code = 2


class ServingError(ActorGridError):
    """A served class did not give an answer; other requests are not touched by it."""


class WrongResultLength(ServingError):
    """A batched method did not give one result for each item. A fault of the class: all items of the batch fail."""


class ExecutorDied(ServingError):
    """The thread that ran a call ended before the call did."""


class ItemExpired(ServingError):
    """A request's time was over before it began to run."""

    http_status = 504


class WrongAnswer(ServingError):
    """A served class gave what cannot be sent: no JSON, or not what its kind of method gives."""


class AnswerBroken(ServingError):
    """The answer of a service had begun, and ended before its end."""


class PlacementError(ActorGridError):
    """The placement engine was asked for something that cannot be."""


class UnknownNode(PlacementError):
    """No node of that name or number is registered."""


class DuplicateNode(PlacementError):
    """A node of that name is registered already."""


class UnknownPlacement(PlacementError):
    """No placement has that id."""


class AdoptRefused(PlacementError):
    """An adopted placement does not fit what the engine holds."""


class AllocatorStalled(PlacementError):
    """An allocator begins nothing of a graph although nothing of it runs."""


class InvalidBlock(PlacementError):
    """The block of device memory, or the move of one, is not this pool's, or is no longer."""


class DeviceError(ActorGridError):
    """A device, or what calls its driver, cannot be used as was asked."""


class NoDeviceDriver(DeviceError):
    """A vendor's driver, or the Python package that calls it, cannot be loaded, or has no such device."""


class DeviceCallFailed(DeviceError):
    """The driver refused a call; ``details`` has the call's name and the code it gave."""


class CrossVendorTransferError(DeviceError):
    """A copy between devices of two vendors has no direct way, or broke off; ``details`` say how much has arrived."""


class Overloaded(ActorGridError):
    """A bound was reached; the same request may be accepted later."""

    http_status = 429
    exit_code = 7


class TooManyRequests(Overloaded):
    """An API key, or a tenant, asks more than it may; ``details`` say when to ask again (``retry_after_s``)."""


class QueueFull(Overloaded):
    """The job queue holds its maximum."""


class TooManySessions(Overloaded):
    """The host serves its maximum of sessions or session leases."""


class MailboxFull(Overloaded):
    """The receiver's queue is full; the message was not sent."""


class TooManyActors(Overloaded):
    """The supervisor, or the whole host, runs its maximum of actors; none was started."""


class NoRoomForNestedTask(Overloaded):
    """A task that was submitted from within a task or job got no worker in time: those that wait may hold the room."""


class NoSuitableTarget(Overloaded):
    """No host, lease or replica may take the request: none has what it requires, or there is none."""


class NamespaceFull(Overloaded):
    """The namespace of the shared state holds as many keys, or bytes, as one may."""


class ServiceBusy(Overloaded):
    """A replica of a service holds as many requests as it may."""


class ServiceLoading(Overloaded):
    """The replica is still loading its model."""

    http_status = 503


class ServiceEnding(Overloaded):
    """The replica finishes what it has begun and takes nothing new; another one may."""

    http_status = 503


class ObjectStoreFull(Overloaded):
    """The host's object store has no room for an object, in memory or on its disk."""


class OutOfDeviceMemory(Overloaded):
    """No hole of the device's memory is large enough; freeing or moving blocks may make one."""


class AdmissionRefused(ActorGridError):
    """The work's deadline cannot be kept as things are, so it was not accepted, or was given up while it waited."""

    http_status = 409
    exit_code = 7


class StateTypeConflict(ActorGridError):
    """The key holds another CRDT type than the operation is for."""

    http_status = 409
    exit_code = 2


class StateCompareFailed(ActorGridError):
    """The key's value on this host is not the expected one: nothing was written. ``found``: what it is, as JSON."""

    http_status = 409
    exit_code = 1


class ActorError(ActorGridError):
    """Something between actors failed."""

    http_status = 503


class CallTimeout(ActorError):
    """No reply came in time; whether the request was carried out is unknown."""

    http_status = 504


class ReceiveTimeout(ActorError, TimeoutError):
    """No message of the wanted kind came in time; those that came are still in the mailbox."""

    http_status = 504


class NoSuchActor(ActorError):
    """No actor is registered under that name."""


class ActorDown(ActorError):
    """The actor died before it answered; whether the request was carried out is unknown."""


class InvalidChildSpec(ActorError):
    """A child specification is wrong; the message says where."""


class ChildExists(ActorError):
    """The supervisor has a child of that id already, or it runs when it must not."""

    http_status = 409
    exit_code = 2


class NameTaken(ActorError):
    """Another living actor is registered under that name."""

    http_status = 409
    exit_code = 2


class NotSupported(ActorError):
    """The actor does not take this request, in its kind or in its present state."""

    http_status = 400
    exit_code = 2


class NotLeader(ActorError):
    """This host does not lead the ledger, so that what was proposed may not be committed; it may be repeated."""


class NoQuorum(ActorError):
    """No majority of the voters can be reached from this host, so nothing new is accepted here; what runs goes on."""

    exit_code = 5


class NotReplicated(ActorError):
    """A write to the shared state is on this host's disk, but too few members said in time that they have it on theirs.

    It stays, and goes on to the others: do not repeat what may not happen twice.
    """

    exit_code = 5


class RestartIntensityExceeded(ActorError):
    """Children died more often than the supervisor's intensity allows; it gave up."""


class TransportError(ActorGridError):
    """Bytes between processes did not get through."""

    http_status = 502


class FrameTooLarge(TransportError):
    """A frame announces more bytes than the limit; the connection is closed."""


class PeerRefused(TransportError):
    """The other side did not accept our credentials or protocol version."""


class PeerGone(TransportError):
    """The other side closed the connection."""


class MalformedMessage(TransportError):
    """Bytes from another host, or kept for it, are not what their format says; nothing of them was applied."""


class TaskError(ActorGridError):
    """The user's work did not give a value."""

    http_status = 409
    exit_code = 1


class TaskFailed(TaskError):
    """The function raised or the command left with a non-zero status.

    ``remote_traceback`` is the worker's traceback as text. What a function raised is raised again as an exception of
    its own class and of this one, where that is possible; else ``__cause__`` is the original exception, if it could be
    carried, and ``found`` or ``details["left_behind"]`` says what could not.
    """

    @property
    def remote_traceback(self) -> str:
        """The traceback on the worker, or an empty string for a command."""
        return str(self.details.get("traceback", ""))

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n\n{self.remote_traceback}" if self.remote_traceback else text


class TaskCancelled(TaskError):
    """The work was cancelled before it gave a value."""


class TaskTimedOut(TaskError, TimeoutError):
    """The work ran past its time limit and was stopped. A TimeoutError, as Python's own pools raise."""


class WorkerLost(TaskError):
    """The worker process died under the work, as often as retries allowed.

    ``details`` hold ``exit_code`` or ``signal``, and the last of its ``stderr``, where the host could still read them.
    """


class MemoryLimitExceeded(TaskError, MemoryError):
    """The work used more memory than it asked for, of the host or of a GPU, and was stopped."""


class DiskLimitExceeded(TaskError):
    """The work held more of its host's disk than it may, or the most of one that was nearly full, and was stopped."""


class GpuIdle(TaskError):
    """The work left all its GPUs idle for as long as it said that it may, and was stopped."""


class WorkerOverMemory(WorkerLost, MemoryLimitExceeded):
    """A session's worker used more memory than its tasks asked for, and was stopped under the task that ran."""


class WorkerOverDisk(WorkerLost, DiskLimitExceeded):
    """A session's worker was stopped for what its tasks held of its host's disk."""


class HostLost(WorkerLost):
    """The whole host was not heard of for longer than the work's ``max_isolation_s``: the work ended there."""


class ActorDied(WorkerLost):
    """An actor of the user's is no more, or the call could not be brought to it.

    ``__cause__`` is the error that ended it, where one did. Whether a call that had begun had an effect is unknown.
    """


class ActorRestarted(ActorDied):
    """An actor died while it ran the call, and was begun again: without the call, unless its ``retries`` say so."""


class UnpicklableResult(TaskError):
    """The function returned something that cannot be sent back."""


class PythonMismatch(TaskError):
    """Client and worker run Pythons that cannot exchange functions."""


class EnvironmentFailed(TaskError):
    """A Python environment that work asked for cannot be built on its host, or does not start there."""


class ContainerFailed(TaskError):
    """A command's container cannot be run on its host: no runtime, no image, a mount that is refused."""


class IsolationNotGiven(TaskError):
    """Work is not kept apart on its host as far as was asked: the host cannot, or not this kind of work."""


class DependencyFailed(TaskError):
    """Work this work depends on did not succeed."""


class InputLost(TaskError):
    """What steps of a graph take from others is nowhere any more; it is made again. ``details["steps"]``: of which."""


class StepFailed(TaskError):
    """A graph has failed, as a step of it has for good; ``details["step"]`` is its id, ``details["steps"]`` those of
    all that failed."""


class OutputMissing(TaskError):
    """A command of a graph left with status 0, and not with all the outputs that it was to leave;
    ``details["missing"]`` names them."""


class StepSkipped(TaskError):
    """A step of a graph was passed over: a condition does not hold, or what it takes was passed over."""


class StoppedEarly(TaskError):
    """A trial of a sweep is not to go on, as others did better; ``details`` has its ``step`` and ``metric``."""


class OutsideTask(TaskError):
    """What only a running job or task knows of itself was asked for in a process that is none."""


def _tree(root: type[ActorGridError]) -> dict[str, type[ActorGridError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        if child.__module__ == __name__:
            found.update(_tree(child))
    return found


_BY_CODE = _tree(ActorGridError)


def error_from_dict(fields: Mapping[str, Any]) -> ActorGridError:
    """The error that :meth:`ActorGridError.to_dict` described; an unknown code gives the base class."""
    kind = _BY_CODE.get(str(fields.get("code", "")), ActorGridError)
    details = fields.get("details") or {}
    return kind(
        str(fields.get("message", "")),
        asked=str(fields.get("asked", "")),
        found=str(fields.get("found", "")),
        hint=str(fields.get("hint", "")),
        **{str(name): value for name, value in details.items()},
    )
