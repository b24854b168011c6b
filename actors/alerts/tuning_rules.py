"""What is slow on a host, and which setting to change: rules over the figures that it has anyway. No I/O.

A rule says nothing unless its figures are there and out of bounds. It names the figures it went by, so that whoever
reads it can judge; nothing is changed by itself. One that no setting helps against says what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

Number = int | float
LOOKED_BACK_S = 600.0
"""Counts are looked at over so long."""


class Figures(Protocol):
    """What ``AlertFigures`` has."""

    @property
    def values(self) -> Mapping[str, float]:
        """Each figure by its name in ``/metrics``, without the prefix; of checks as ``check.NAME.FIGURE``."""

    def increase(self, name: str, over_s: float) -> float | None:
        """By how much one that counts up has grown; ``None``: not known for so long."""

    def known_for_s(self, name: str) -> float:
        """For how long one that counts up has been looked at."""


@dataclass(frozen=True, slots=True)
class TuningView:
    """The figures of one host, and its settings by their key."""

    figures: Figures
    setting: Callable[[str], object]

    def value(self, name: str) -> float | None:
        """A figure; ``None``: it is not known."""
        return self.figures.values.get(name)

    def grew(self, name: str, over_s: float = LOOKED_BACK_S) -> float:
        """By how much one has grown; 0 where that is not known."""
        return self.figures.increase(name, over_s) or 0.0

    def number(self, key: str) -> Number:
        """A setting that is a number."""
        found = self.setting(key)
        assert isinstance(found, int | float), f"{key} is no number"
        return found


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What a rule found. *to* is the value to give the rule's setting, or ``None`` where none helps."""

    what: str
    evidence: str
    to: Number | str | None
    effect: str
    """What is expected of that."""


@dataclass(frozen=True, slots=True)
class TuningRule:
    """One kind of finding, by a name that stays. *setting*: what it changes; empty: no setting helps."""

    name: str
    setting: str
    look: Callable[[TuningView], Suggestion | None]


def _queue_full(view: TuningView) -> Suggestion | None:
    waiting, most = view.value("queue_length"), view.number("scheduling.queue_max")
    if waiting is None or waiting < 0.8 * most:
        return None
    return Suggestion(
        "the queue is nearly full",
        f"{waiting:.0f} jobs wait, of {most} that may",
        min(10_000_000, int(most) * 2),
        "jobs go on being taken instead of refused with QueueFull",
    )


def _sessions_full(view: TuningView) -> Suggestion | None:
    open_now, most = view.value("sessions"), view.number("sessions.max_sessions")
    if open_now is None or open_now < 0.8 * most:
        return None
    return Suggestion(
        "sessions are nearly all taken",
        f"{open_now:.0f} sessions are open, of {most} that may be",
        min(100_000, int(most) * 2),
        "clients go on being let in",
    )


def _attempts_full(view: TuningView) -> Suggestion | None:
    running, most = view.value("attempts_running"), view.number("work.max_attempts")
    waiting, cpu, memory = (view.value(name) for name in ("queue_length", "host_load_cpu_ratio", _MEMORY))
    if running is None or running < 0.9 * most or not waiting:
        return None
    if (cpu or 0.0) > 0.85 or (memory or 0.0) > 0.8:
        return None  # the host is full, whatever the number
    return Suggestion(
        "the host may run no more attempts, though it has CPU and memory left",
        f"{running:.0f} attempts run, of {most} that may; {waiting:.0f} jobs wait; CPU {cpu or 0:.0%}",
        min(10_000, int(most) * 2),
        "jobs that wait start here",
    )


def _memory_short(view: TuningView) -> Suggestion | None:
    stalled, used, running = (view.value(name) for name in ("check.memory.full_percent", _MEMORY, "attempts_running"))
    if running is None or running < 2 or ((stalled or 0.0) < 5.0 and (used or 0.0) < 0.92):
        return None
    return Suggestion(
        "work waits for memory of the host",
        f"all waited for memory {stalled or 0:.0f} % of the time; {used or 0:.0%} in use; {running:.0f} attempts",
        max(1, int(running * 3 / 4)),
        "fewer attempts at once, none of them paging; better still, jobs that say what they need (--memory)",
    )


def _processes_short_lived(view: TuningView) -> Suggestion | None:
    begun, served = view.grew("function_workers_started_total"), view.grew("functions_served_total")
    bound = view.number("work.calls_per_process")
    if begun < 10 or bound <= 1 or served < 0.8 * bound * begun:
        return None
    return Suggestion(
        "processes of durable functions end at their number of calls, and new ones are begun",
        f"in 10 min, {begun:.0f} processes served {served:.0f} calls: {served / begun:.0f} each, of {bound} at most",
        min(100_000, int(bound) * 5),
        "a fifth of the starts; what a function leaves in its process stays five times as long",
    )


def _workers_idle_out(view: TuningView) -> Suggestion | None:
    begun, ended = view.grew("workers_started_total"), view.grew("workers_idle_ended_total")
    idle_s = view.number(_POOL)
    if begun < 20 or ended < 0.5 * begun:
        return None
    return Suggestion(
        "workers of sessions are ended as idle, and begun again",
        f"in 10 min, {begun:.0f} workers were begun and {ended:.0f} ended after {idle_s:g} s without work",
        min(3600.0, idle_s * 2),
        "sessions find a warm worker; each keeps its memory for longer",
    )


def _commits_slow(view: TuningView) -> Suggestion | None:
    p99_s = view.value("ledger_commit_seconds_p99")
    if p99_s is None or p99_s < 0.1:
        return None
    sync_ms, rtt_ms = view.value("check.disk.fdatasync_ms"), view.value("check.network.rtt_ms")
    if sync_ms is not None and sync_ms >= 10.0:
        return Suggestion(
            "commits wait for the disk",
            f"one of a hundred takes {1000 * p99_s:.0f} ms; 4 KiB are durable after {sync_ms:.0f} ms",
            None,
            "put the data directory on a disk of its own, or a faster one (up --data-dir)",
        )
    return Suggestion(
        "commits are slow, and the disk is not why",
        f"one of a hundred takes {1000 * p99_s:.0f} ms; a call to another host {rtt_ms or 0:.1f} ms",
        None,
        "look at the way to the other voters, or at a leader that has too much to do: actorgrid hosts --load",
    )


def _network_loses(view: TuningView) -> Suggestion | None:
    lossy, peers = view.value("check.network.lossy"), view.value("check.network.peers")
    if not lossy:
        return None
    return Suggestion(
        "calls to other hosts are lost",
        f"on the ways to {lossy:.0f} of {peers or 0:.0f} other hosts",
        None,
        "mend the network: hosts count as unreachable, and gossip comes late (actorgrid faults, actorgrid why host)",
    )


def _loop_late(view: TuningView) -> Suggestion | None:
    lateness, interval_s = view.value("check_lateness"), view.number("gpus.probe_interval_s")
    starved = view.value("check.processor.some_percent")
    if lateness is None or lateness < 1.5 or interval_s >= 60:
        return None
    return Suggestion(
        "the agent's servers do not get the CPU in time",
        f"what was due after 1 s came after {lateness:.1f} s; work waited for a CPU {starved or 0:.0f} % of the time",
        min(60.0, interval_s * 2),
        "readings of GPUs cost half as much; what helps more is work that asks for the CPUs it uses (--cpus)",
    )


def _placement_slow(view: TuningView) -> Suggestion | None:
    p99_us, grants = view.value("placement_latency_p99_us"), view.grew("grants_total")
    if p99_us is None or p99_us < 5_000 or grants < 10 or view.setting("scheduling.policy") == "best_fit":
        return None
    return Suggestion(
        "decisions where work goes take long",
        f"one of a hundred takes {p99_us / 1000:.1f} ms under {view.setting('scheduling.policy')}",
        "best_fit",
        "decisions take microseconds; GPUs are a little less full",
    )


def _gpus_idle(view: TuningView) -> Suggestion | None:
    busy = view.value("gpus_utilization_percent")
    given, total = view.value("gpu_allocated_milli"), view.value("gpu_capacity_milli")
    if busy is None or not total or given is None or given < 0.5 * total or busy >= 10.0:
        return None
    return Suggestion(
        "GPUs that are given out have nothing to do",
        f"{given / total:.0%} of the GPUs are given out; those of this host are busy {busy:.0f} % of the time",
        None,
        "shares (--gpus 0.5), and jobs that end when they are idle (--stop-when-idle): actorgrid gpus shows whose",
    )


def _queue_stands(view: TuningView) -> Suggestion | None:
    waiting, given, total = (view.value(each) for each in ("queue_length", "gpu_allocated_milli", "gpu_capacity_milli"))
    stood = view.figures.known_for_s("grants_total") >= 0.9 * LOOKED_BACK_S and not view.grew("grants_total")
    if not waiting or not stood or not total or given is None or given > 0.5 * total:
        return None
    return Suggestion(
        "jobs wait though half of the GPUs are free",
        f"{waiting:.0f} jobs wait, none was placed in 10 min, and {1 - given / total:.0%} of the GPUs are free",
        None,
        "actorgrid why JOB says what each waits for: a model, a quota, memory, a place kept for another",
    )


def _leases_lapse(view: TuningView) -> Suggestion | None:
    lapsed, patience_s = view.grew("lease_lapses_total", 1_800.0), view.number("work.max_isolation_s")
    if lapsed < 1 or patience_s >= 300:
        return None
    return Suggestion(
        "work was ended because its host was cut off for too long",
        f"{lapsed:.0f} times in 30 min, after {patience_s:g} s each",
        min(300.0, patience_s * 3),
        "work outlives such breaks; that of a host that is really lost is placed again as much later",
    )


def _sessions_lapse(view: TuningView) -> Suggestion | None:
    lapsed, expire_s = view.grew("sessions_expired_total"), view.number("sessions.expire_s")
    if lapsed < 5 or expire_s >= 300:
        return None
    return Suggestion(
        "sessions are closed because their clients were not heard in time",
        f"{lapsed:.0f} in 10 min, after {expire_s:g} s each",
        min(300.0, expire_s * 3),
        "clients that pause keep their workers; those of clients that are gone are kept as much longer",
    )


_MEMORY = "host_load_memory_ratio"
_POOL = "work.pools.general.idle_s"
TUNING_RULES = (
    TuningRule("queue-full", "scheduling.queue_max", _queue_full),
    TuningRule("sessions-full", "sessions.max_sessions", _sessions_full),
    TuningRule("attempts-full", "work.max_attempts", _attempts_full),
    TuningRule("memory-short", "work.max_attempts", _memory_short),
    TuningRule("processes-short-lived", "work.calls_per_process", _processes_short_lived),
    TuningRule("workers-idle-out", _POOL, _workers_idle_out),
    TuningRule("commits-slow", "", _commits_slow),
    TuningRule("network-loses", "", _network_loses),
    TuningRule("cpu-late", "gpus.probe_interval_s", _loop_late),
    TuningRule("placement-slow", "scheduling.policy", _placement_slow),
    TuningRule("gpus-idle", "", _gpus_idle),
    TuningRule("queue-stands", "", _queue_stands),
    TuningRule("leases-lapse", "work.max_isolation_s", _leases_lapse),
    TuningRule("sessions-lapse", "sessions.expire_s", _sessions_lapse),
)


@dataclass(frozen=True, slots=True)
class TuningFinding:
    """What a rule says of one host."""

    name: str
    host: str
    what: str
    evidence: str
    setting: str
    """Empty: no setting helps."""
    now: object
    to: Number | str | None
    live: bool
    """Whether the setting is changed while hosts run; else it is written into a file, and the agent started again."""
    effect: str


def findings(host: str, view: TuningView, is_live: Callable[[str], bool]) -> list[TuningFinding]:
    """What all rules say of *host*, in their order; nothing where *to* is what the setting is already."""
    found = []
    for rule in TUNING_RULES:
        said = rule.look(view)
        now = view.setting(rule.setting) if rule.setting else None
        if said is None or (rule.setting and said.to == now):
            continue
        live = bool(rule.setting) and is_live(rule.setting)
        found.append(
            TuningFinding(rule.name, host, said.what, said.evidence, rule.setting, now, said.to, live, said.effect)
        )
    return found
