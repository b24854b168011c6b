"""What the ledger is told of an attempt's end, from what the shim and the worker left. Decisions only."""

from __future__ import annotations

from zlib import crc32

from actorgrid.endings import end_of, for_want_of_memory, how_it_ended, last_lines
from actorgrid.errors import (
    ActorGridError,
    ContainerFailed,
    DiskLimitExceeded,
    EnvironmentFailed,
    GpuIdle,
    InputLost,
    IsolationNotGiven,
    MemoryLimitExceeded,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    WorkerLost,
)
from actorgrid.transports.task_frames import JobResult

from .command_steps import lacking_outputs
from .container_endings import failure_of_runtime
from .disk_limits import OverDisk
from .work_records import AttemptEnd, WorkSpec, WorkStatus

RETRY_MAX_S = 60.0
RETRY_JITTER = 0.25
STDERR_TAIL_BYTES = 2048
MAKE_ENVIRONMENT, START_CONTAINER = "make the Python environment", "start the container"
KEEP_APART = "keep it apart"
"""What the child of a shim says that it cannot do, where that has an error of its own."""
PREEMPTED, GANG, SUPERSEDED = "preempted", "gang", "superseded"
"""Why an attempt is told to end: another is to have its room; another member of its gang has not succeeded; an earlier
attempt had done the work, and its host is back."""
GIVEN_BACK = "given_back"
"""It stood behind another for too long (standing.py), or that one's place is wanted by others."""
ASKED_TO_END = (PREEMPTED, GANG, SUPERSEDED, GIVEN_BACK)
"""What keeps an attempt from being begun, and is told when that was in time."""


def retry_delay_s(backoff_s: float, number: int, attempt_id: str = "") -> float:
    """Seconds to wait after attempt *number*: the backoff, doubled each time, at most a minute.

    Less up to a quarter, by the id of the attempt: what failed together does not come again together.
    """
    part = crc32(attempt_id.encode()) / 2**32 if attempt_id else 0.0
    return min(RETRY_MAX_S, backoff_s * 2.0 ** min(number - 1, 30)) * (1.0 - RETRY_JITTER * part)


def outcome_of(spec: WorkSpec, status: WorkStatus, stderr_tail: bytes, result: JobResult | None) -> AttemptEnd:
    """The fields of ``end_attempt`` for an attempt whose shim left *status*.

    *result* is the decoded result file of a function job, if it left a readable one.
    """
    outcome, charge, error = _judge(spec, status, stderr_tail, result)
    return {
        "outcome": outcome,
        "charge": charge,
        "exit_code": status.get("exit_code"),
        "signal": status.get("signal"),
        "error": None if error is None else error.to_dict(),
        "max_rss_bytes": status.get("max_rss_bytes"),
        "cpu_s": status.get("cpu_s"),
        "result_bytes": status.get("result_bytes") if outcome == "succeeded" else None,
    }


def outcome_of_lost(attempt_id: str, went_with: str | None) -> AttemptEnd:
    """The fields of ``end_attempt`` for an attempt whose shim is gone without a word.

    *went_with* says what took it along: ``"host"`` or ``"agent"`` is not the job's fault and costs it no retry;
    ``None`` means that it died alone, as one does that asked the kernel for too much memory.
    """
    if went_with is not None:
        error = WorkerLost(f"attempt {attempt_id} ended together with the {went_with}", hint="it is tried again")
    else:
        error = WorkerLost(
            f"the shim of attempt {attempt_id} was killed, and its processes with it",
            hint="look for the kernel's out-of-memory killer in dmesg; set memory= to be told by name",
        )
    return {"outcome": "lost", "charge": went_with is None, "error": error.to_dict()}


def outcome_of_not_begun(attempt_id: str, reason: str) -> AttemptEnd:
    """The fields of ``end_attempt`` for an attempt that was asked to end, by that *reason*, before it was begun."""
    if reason == GIVEN_BACK:
        error = WorkerLost(
            f"attempt {attempt_id} was given back unbegun: the call in front of it took longer than was expected",
            hint="it is placed again, and costs no retry",
        )
        return {"outcome": "lost", "charge": False, "error": error.to_dict()}
    if reason in _NOT_NEEDED:
        return {"outcome": "cancelled", "charge": False, "error": _not_needed(attempt_id, reason).to_dict()}
    return {"outcome": PREEMPTED, "charge": False, "error": None}


def outcome_of_not_started(attempt_id: str, limit_s: float, waited_for: str) -> AttemptEnd:
    """The fields of ``end_attempt`` for an attempt that its host gives back, not having started it within *limit_s*."""
    error = WorkerLost(
        f"attempt {attempt_id} was given back: its host could not start it within {limit_s:g} s",
        asked=f"work.start_timeout_s = {limit_s:g}",
        found=f"it waited for {waited_for}" if waited_for else "",
        hint="it is placed again, and costs no retry; actorgrid hosts and actorgrid doctor show how the host is",
    )
    return {"outcome": "lost", "charge": False, "error": error.to_dict()}


def outcome_of_unkept(attempt_id: str, why: str) -> AttemptEnd:
    """The fields of ``end_attempt`` for an attempt whose result the disk did not keep."""
    error = WorkerLost(f"the result of attempt {attempt_id} could not be kept: {why}", hint="it is tried again")
    return {"outcome": "lost", "charge": False, "error": error.to_dict()}


GPU_MEMORY = "gpu_memory"
"""How the reason begins with which work is ended that overdrew its memory of a device."""
GPU_HEAT = "gpu_heat"
"""How the reason begins with which work is ended whose device is about to switch itself off."""
GPU_IDLE = "gpu_idle"
"""How the reason begins with which work is ended that left its devices idle."""
DISK = "disk"
"""How the reason begins with which work is ended for what it holds of its host's disk."""
_NOT_NEEDED = {
    GANG: "another member of its gang did not succeed",
    SUPERSEDED: "an earlier attempt had succeeded on a host that was away and came back",
}


def _not_needed(attempt_id: str, reason: str) -> TaskCancelled:
    return TaskCancelled(f"{attempt_id} was ended because {_NOT_NEEDED[reason]}")


def overdrawn_reason(gpu_index: int, used_mib: int, granted_mib: int) -> str:
    """The reason with which a shim is told to end work that overdrew a device's memory."""
    return f"{GPU_MEMORY} {gpu_index} {used_mib} {granted_mib}"


def overdrawn(work_id: str, reason: str) -> MemoryLimitExceeded:
    """The error for who owns work ended for that *reason*, which comes back from a file that the work could write."""
    numbers = [int(word) if word.isdecimal() and len(word) < 12 else 0 for word in reason.split()[1:4]]
    gpu_index, used_mib, granted_mib = [*numbers, 0, 0, 0][:3]
    return MemoryLimitExceeded(
        f"{work_id} used more memory of GPU {gpu_index} than it asked for",
        asked=f"{granted_mib} MiB",
        found=f"{used_mib} MiB",
        hint="ask for more with --gpu-memory (gpu_memory= in Python); a process's own share of the driver counts, too",
    )


def overheated_reason(gpu_index: int, celsius: int) -> str:
    """The reason with which a shim is told to end work because of its device's heat."""
    return f"{GPU_HEAT} {gpu_index} {celsius}"


def overheated(work_id: str, reason: str) -> WorkerLost:
    """The error for who owns work ended for that *reason*, which comes back from a file that the work could write."""
    numbers = [int(word) if word.isdecimal() and len(word) < 6 else 0 for word in reason.split()[1:3]]
    gpu_index, celsius = [*numbers, 0, 0][:2]
    return WorkerLost(
        f"{work_id} was ended: its GPU {gpu_index} was at {celsius} °C and about to switch itself off",
        hint="it is placed on another device, and costs no retry; look at the host's cooling",
    )


def disk_reason(over: OverDisk) -> str:
    """The reason with which a shim is told to end work for what it holds of the disk."""
    return f"{DISK} {over.held_bytes} {over.held_files} {over.limit_bytes} {over.free_bytes} {over.kept_bytes}"


def over_disk(work_id: str, reason: str) -> DiskLimitExceeded:
    """The error for who owns work ended for that *reason*, which comes back from a file that the work could write."""
    numbers = [int(word) if word.isdecimal() and len(word) < 20 else 0 for word in reason.split()[1:6]]
    held, files, limit, free, kept = [*numbers, 0, 0, 0, 0, 0][:5]
    if limit:
        return DiskLimitExceeded(
            f"{work_id} held more of its host's disk than work may there",
            asked=f"{limit} bytes (work.disk_bytes_max)",
            found=f"{held} bytes in {files} files",
            hint="remove what is not needed while it runs, or write to another disk; the host's setting can be raised",
        )
    return DiskLimitExceeded(
        f"{work_id} was ended to make room: its host's disk was nearly full, and it held the most",
        asked=f"{kept} bytes kept free (work.disk_free_min_bytes)",
        found=f"{free} bytes free, {held} bytes in {files} files held",
        hint="write less, or to another disk; actorgrid hosts shows which have room",
    )


def idle_reason(idle_s: float) -> str:
    """The reason with which a shim is told to end work that left its devices idle."""
    return f"{GPU_IDLE} {idle_s:.0f}"


def _idle(attempt_id: str, reason: str) -> GpuIdle:
    words = reason.split()[1:2]
    idle = f"{words[0]} s" if words and words[0].isdecimal() and len(words[0]) < 12 else "too long"
    return GpuIdle(
        f"attempt {attempt_id} was stopped: its GPUs were idle for {idle}",
        hint="--stop-when-idle (stop_when_idle_s= in Python) says for how long they may be; it is not tried again",
    )


def _judge(
    spec: WorkSpec, status: WorkStatus, stderr_tail: bytes, result: JobResult | None
) -> tuple[str, bool, ActorGridError | None]:
    attempt_id = spec["id"]
    reason = status.get("reason")
    if reason == "timed_out":
        limit = f"{spec['timeout_s'] or 0.0:g} s"
        hint = "ask for more with --timeout (timeout= in Python), or split the work"
        return "timed_out", True, TaskTimedOut(f"attempt {attempt_id} ran past {limit}", hint=hint)
    if reason == PREEMPTED and not (result is not None and result.ok and status.get("exit_code") == 0):
        # Told to stop, a command that saves its work leaves with 0 as well: that does not mean that it is done.
        return PREEMPTED, False, None
    if reason in _NOT_NEEDED:
        return "cancelled", False, _not_needed(attempt_id, reason)
    if reason == "cancelled":
        return "cancelled", False, TaskCancelled(f"attempt {attempt_id} was cancelled while it ran")
    if reason == "memory":
        error = MemoryLimitExceeded(
            f"attempt {attempt_id} used more host memory than it asked for",
            asked=f"{spec['memory_bytes']} bytes",
            found=f"{status.get('max_rss_bytes')} bytes",
            hint="ask for more with --memory (memory= in Python)",
        )
        return "failed", True, error
    if str(reason).startswith(GPU_MEMORY):
        return "failed", True, overdrawn(attempt_id, str(reason))
    if str(reason).startswith(GPU_HEAT):
        return "lost", False, overheated(attempt_id, str(reason))
    if str(reason).startswith(f"{DISK} "):
        return "failed", True, over_disk(attempt_id, str(reason))
    if str(reason).startswith(GPU_IDLE):
        return "cancelled", False, _idle(attempt_id, str(reason))
    if reason == "isolated":
        lost = WorkerLost(
            f"attempt {attempt_id} was ended: its agent was away longer than {spec['isolation_s']:g} s",
            hint="it is tried again; max_isolation_s sets how long it may go on alone",
        )
        return "lost", False, lost
    if reason == "stopped":
        return "lost", False, WorkerLost(f"attempt {attempt_id} was ended by an orderly stop", hint="it is tried again")
    if reason == "refused":
        return "failed", True, _not_started(spec, str(status.get("error", "")))
    return _judge_exit(spec, status, stderr_tail, result)


def _judge_exit(
    spec: WorkSpec, status: WorkStatus, stderr_tail: bytes, result: JobResult | None
) -> tuple[str, bool, ActorGridError | None]:
    code, number = status.get("exit_code"), status.get("signal")
    if spec["kind"] == "function" and result is not None and number is None:
        if result.ok and code == 0:
            return "succeeded", True, None
        if isinstance(result.error, InputLost) and spec["function"].get("live_inputs"):
            return "lost", False, result.error  # a step beside it did not come to its end: no fault of this one
        if result.error is not None:
            return ("timed_out" if isinstance(result.error, TaskTimedOut) else "failed"), True, result.error
    elif spec["kind"] == "command" and code == 0:
        lacking = lacking_outputs(spec, status)
        return ("succeeded", True, None) if lacking is None else ("failed", True, lacking)
    of_container = failure_of_runtime(spec, code, stderr_tail.decode("utf-8", "replace")) if number is None else None
    if of_container is not None:
        return "failed", True, of_container
    what = "the worker" if spec["kind"] == "function" else "the command"
    scarce = for_want_of_memory(int(status.get("oom_kills") or 0))
    how = f"was {how_it_ended(None, number)}{scarce}" if number is not None else f"left with status {code}"
    missing = " without a result" if spec["kind"] == "function" else ""
    said = stderr_tail.decode("utf-8", "replace")
    error = TaskFailed(
        f"{what} {how}{missing}",
        found=f"the last on stderr: {last_lines(said)}" if said.strip() else "",
        hint=f"actorgrid logs {spec['job_id']}",
        exit_code=code,
        signal=number,
        stderr=end_of(said, STDERR_TAIL_BYTES),
    )
    return "failed", True, error


def _not_started(spec: WorkSpec, why: str) -> ActorGridError:
    steps = (MAKE_ENVIRONMENT, EnvironmentFailed), (START_CONTAINER, ContainerFailed), (KEEP_APART, IsolationNotGiven)
    for step, kind in steps:
        if why.startswith(f"cannot {step}: "):
            return kind(why, asked=spec["id"], hint=f"actorgrid logs {spec['job_id']}")
    if why.startswith("cannot enter"):
        hint = "give a cwd that exists on the host"
    elif why.startswith("cannot run"):
        hint = "check the spelling, give the full path, or set PATH in env"
    else:
        hint = "the message above is the system's"
    return TaskFailed(why, asked=" ".join(spec.get("command") or [spec["kind"]])[:200], hint=hint, exit_code=127)
