"""Decisions of the cluster room, free of I/O: why a job is where it is, and how healthy a host is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actorgrid.models import JobState, NodeHealth

SILENT_BEATS = 5
"""Heartbeats a server may miss before it counts as silent: a restart takes less, a hang more."""


def choose_pool(resources: Mapping[str, Any], asked: str | None) -> str:
    """The pool of warm workers for a request; one that touches a GPU always runs in ``gpu_compute``."""
    if resources["gpu_count"]:
        return "gpu_compute"
    return asked or "general"


def duration(seconds: float) -> str:
    """A length of time for people: ``0.4 s``, ``3 min 5 s``, ``2 h 4 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


FAILED = {
    "gpu_busy": "free GPU shares",
    "gpu_memory": "free GPU memory",
    "gpu_model": "GPUs of the model asked for",
    "gpu_count": "GPUs",
    "cpu": "free CPU",
    "memory": "free memory",
}
"""What people call the constraints the engine counts; others go by the engine's own name."""


def missing(nearest: Any) -> str:
    """The engine's nearest miss for people: what it lacks there."""
    if not isinstance(nearest, Mapping) or not isinstance(nearest.get("missing"), Mapping):
        return str(nearest)
    parts = [
        f"{amount / 1000:g} of a GPU on each"
        if name == "gpu_milli"
        else f"{amount / 1000:g} {name.removesuffix('_milli').upper()}"
        if name.endswith("_milli")
        else f"{amount} MiB of {name.removesuffix('_mib').replace('_', ' ')}"
        if name.endswith("_mib")
        else f"{amount} {'GPU' if amount == 1 else 'GPUs'}"
        if name == "gpus"
        else f"{amount} {name}"
        for name, amount in nearest["missing"].items()
    ]
    return "the host that comes closest lacks " + ", ".join(parts)


def explain_job(
    job: Mapping[str, Any],
    now: float,
    dependencies: Mapping[str, str],
    fit: Mapping[str, Any] | None,
    host_problems: Iterable[str],
) -> dict[str, Any]:
    """Why *job* is where it is, and what to do next.

    *dependencies* maps the jobs it waits for to their states; *fit* is the engine's ``explain()`` for a
    queued job (with ``position``), or ``None`` when it could not be asked.
    """
    state = JobState(job["state"])
    reasons: list[str] = []
    next_step = "nothing to do"
    job_id = job["job_id"]
    if state is JobState.QUEUED:
        reasons, next_step = _explain_queued(job, now, dependencies, fit, list(host_problems))
    elif state is JobState.PLACED:
        reasons = ["a place is committed; the worker is being started"]
        next_step = f"actorgrid logs -f {job_id}"
    elif state is JobState.RUNNING:
        attempt = job["attempts"][-1]
        since = now - (attempt.get("started_at") or attempt.get("placed_at") or now)
        indexes = attempt.get("gpu_indexes") or []
        gpus = f"GPU {', '.join(str(index) for index in indexes)}" if indexes else "no GPU"
        reasons = [f"attempt {attempt['number']} has been running for {duration(since)} on {gpus}"]
        if job["cancel_requested"]:
            reasons.append("it was asked to stop; it is killed when its grace is over")
        next_step = f"actorgrid logs -f {job_id}"
    elif state is JobState.SUCCEEDED:
        reasons = ["it succeeded"]
    elif state is JobState.CANCELLED:
        reasons = ["it was cancelled"]
        next_step = "submit it again if you still want it"
    else:
        error = job.get("error") or (job["attempts"][-1].get("error") if job["attempts"] else None) or {}
        reasons = [error.get("message") or f"it ended as {state.value}"]
        if error.get("found"):
            reasons.append(error["found"])
        if job["attempts"]:
            made = len(job["attempts"])
            reasons.append("one attempt was made" if made == 1 else f"{made} attempts were made")
        next_step = error.get("hint") or f"actorgrid logs --stderr {job_id}"
    return {
        "job_id": job_id,
        "state": state.value,
        "reasons": reasons,
        "next_step": next_step,
        "position": (fit or {}).get("position"),
        "explain": dict(fit) if fit else None,
    }


def _explain_queued(
    job: Mapping[str, Any],
    now: float,
    dependencies: Mapping[str, str],
    fit: Mapping[str, Any] | None,
    problems: list[str],
) -> tuple[list[str], str]:
    reasons = [f"it has been waiting for {duration(now - job['submitted_at'])}"]
    unmet = {name: state for name, state in dependencies.items() if state != JobState.SUCCEEDED}
    if unmet:
        shown = ", ".join(f"{name} ({state})" for name, state in sorted(unmet.items())[:5])
        more = f" and {len(unmet) - 5} more" if len(unmet) > 5 else ""
        return [*reasons, f"it depends on {shown}{more}"], f"actorgrid why {sorted(unmet)[0]}"
    if job["not_before"] > now:
        last = job["attempts"][-1] if job["attempts"] else {}
        reasons.append(
            f"attempt {len(job['attempts'])} ended ({(last.get('error') or {}).get('message', 'see its log')})"
        )
        reasons.append(f"the next attempt starts in {duration(job['not_before'] - now)}")
        return reasons, f"actorgrid logs --stderr {job['job_id']}"
    if problems:
        reasons.extend(f"host: {problem}" for problem in problems)
    if fit is None:
        reasons.append("the scheduler did not answer just now")
        return reasons, "ask again in a moment; actorgrid status shows whether it is restarting"
    if fit.get("position"):
        ahead = fit["position"] - 1
        if ahead:
            reasons.append("one job is ahead of it in the queue" if ahead == 1 else f"{ahead} jobs are ahead of it")
    if fit.get("fits"):
        reasons.append("it fits now and is about to be placed")
        return reasons, "wait a moment"
    for name, count in (fit.get("failed") or {}).items():
        if count:
            reasons.append(f"{FAILED.get(name, name)}: not enough on {count} host{'s' if count > 1 else ''}")
    if fit.get("nearest"):
        reasons.append(f"nearest: {missing(fit['nearest'])}")
    return reasons, "wait for running work to end, ask for less, or raise its --priority; actorgrid ps shows what runs"


@dataclass(slots=True)
class Vital:
    """What is known of one server process."""

    pid: int
    handled: int
    last_beat_s: float
    restarts: int = 0


class Vitals:
    """Health of one host from the beats of its servers and readings of its disk and memory."""

    def __init__(self, expected: Iterable[str], beat_interval_s: float, now_s: float) -> None:
        self.beat_interval_s = beat_interval_s
        self.expected = tuple(expected)
        self.servers: dict[str, Vital] = {}
        self._since_s = now_s
        self.host_problems: list[str] = []

    def beat(self, name: str, pid: int, handled: int, now_s: float) -> None:
        """A server's message loop turned."""
        known = self.servers.get(name)
        if known is None:
            self.servers[name] = Vital(pid, handled, now_s)
            return
        if known.pid != pid:
            known.restarts += 1
        known.pid, known.handled, known.last_beat_s = pid, handled, now_s

    def resume(self, now_s: float) -> None:
        """The host was paused: what seemed silence was ours as well, so everyone starts anew."""
        self._since_s = now_s
        for vital in self.servers.values():
            vital.last_beat_s = now_s

    def silent(self, now_s: float) -> list[str]:
        """Servers that have not been heard of for too long."""
        patience = SILENT_BEATS * self.beat_interval_s
        return [
            name
            for name in self.expected
            if now_s - (self.servers[name].last_beat_s if name in self.servers else self._since_s) > patience
        ]

    def report(self, now_s: float) -> dict[str, Any]:
        """Health, readiness, problems and per-server figures.

        HostSupervisor starts us after it saw the others start, so one not yet heard of is not held against them.
        """
        silent = self.silent(now_s)
        problems = [f"{name} is silent" for name in silent] + self.host_problems
        return {
            "health": (NodeHealth.DEGRADED if problems else NodeHealth.HEALTHY).value,
            "ready": not silent,
            "problems": problems,
            "servers": {
                name: {
                    "pid": vital.pid,
                    "handled": vital.handled,
                    "silent_s": round(now_s - vital.last_beat_s, 3),
                    "restarts": vital.restarts,
                }
                for name, vital in sorted(self.servers.items())
            },
        }
