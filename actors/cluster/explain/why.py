"""Why a job is where it is: a headline, the facts behind it, and what to do next. Decisions only, for people to read.

A waiting job is explained from the engine's ``explain()``, its place in the line, the jobs it depends on, its user's
quota, its reservation and who holds the room it could use; an ended one from what its last attempt left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from actorgrid.actors.ledger.notice_records import NoticeRecord
from actorgrid.actors.ledger.record_types import (
    NO_ATTEMPT,
    NO_ERROR,
    NO_HOST,
    NO_JOB,
    AllocationRecord,
    AttemptRecord,
    HostRecord,
    JobRecord,
    PreemptionRecord,
    QuotaRecord,
    ResourcesRecord,
)
from actorgrid.actors.ledger.tables.quotas import Shortage, amount_text, amounts_held, shortage
from actorgrid.amounts import counted, duration, mebibytes
from actorgrid.models import DESCRIPTIVE, JobState

from .binding import binding, resource_use
from .contention import FitReport, Holder, fits_at, freeing, holders, holders_of_user, may_go
from .enforcement import ENFORCE_MORE, HOSTS_SHOWN, enforce_less, enforced_note, nowhere_enforced
from .graphs import GraphProgress, explain_graph
from .interruptions import away_note, deadline_note, late_notes, lost_note, stopped_for_another, waiting_notes
from .notice_notes import notice_notes
from .phrases import CONSTRAINTS, gang_ending, gang_hosts, gang_lacks, listed, nearest_has, needs, pairs
from .tenant_share import kept_out_by_tenant, share_reasons

STDERR_LINES = 5
PRIORITY_MAX = 100
OTHERS = "work of others"
HOLDERS_SHOWN = 10
ATTEMPTS_SHOWN = 10
SIGKILL, SIGSEGV = 9, 11
NOT_STARTED = (126, 127)
"""Exit codes of shells, and ours, for a program that cannot be run or found."""
_SOON_S = 30.0


@dataclass(frozen=True, slots=True)
class JobContext:
    """What is known of the cluster that a job waits or runs in. *fit* is the engine's ``explain()`` for a queued job
    (with ``position`` and, where the scheduler keeps one, ``reservation``), or ``None`` when it could not be asked.

    *dependencies*: the states of the jobs it depends on; *openings*: what could be asked for instead and would fit
    now; *waiting*: how many jobs wait; *root*: for one that failed with a job it depends on, the job it began with;
    *away*: hosts that are not heard of, and for how many seconds; *unsure*: why all this is only what was last known;
    *start_delay*: of a placed one, what its host says it waits for, and how long it has left to start; *graph*: of a
    graph of steps, how far it is; *notices*: what it is still to tell, or could not; *enforced*: who enforces it.
    """

    now: float
    dependencies: Mapping[str, str] = field(default_factory=dict)
    fit: FitReport | None = None
    problems: tuple[str, ...] = ()
    hosts: Mapping[str, HostRecord] = field(default_factory=dict)
    allocations: tuple[AllocationRecord, ...] = ()
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    openings: tuple[str, ...] = ()
    waiting: int = 0
    root: JobRecord | None = None
    quotas: Mapping[str, QuotaRecord] = field(default_factory=dict)
    away: Mapping[str, float] = field(default_factory=dict)
    unsure: tuple[str, ...] = ()
    start_delay: Mapping[str, Any] | None = None
    enforced: Mapping[str, str] = field(default_factory=dict)
    graph: GraphProgress | None = None
    notices: tuple[NoticeRecord, ...] = ()


@dataclass(slots=True)
class _Story:
    """*notes* are for people alone; what *reasons* say stands in *more* as well."""

    headline: str
    notes: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def explain_job(job: JobRecord, context: JobContext) -> dict[str, Any]:
    """Explain why *job* is where it is. The keys are stable: see ``WhyAnswer``."""
    state = JobState(job["state"])
    if context.graph is not None:
        told = explain_graph(job, context.graph, context.now)
        story = _Story(told.headline, told.notes, told.steps, told.more)
    elif state is JobState.QUEUED:
        story = _queued(job, context)
    elif state is JobState.PLACED:
        story = _placed(job, context)
    elif state is JobState.RUNNING:
        story = _running(job, context)
    elif state is JobState.SUCCEEDED:
        story = _succeeded(job, context)
    elif state is JobState.CANCELLED:
        story = _cancelled(job, context)
    else:
        story = _failed(job, context)
    story.notes += notice_notes(context.notices)
    fit = context.fit
    described = {name: job.get(name) for name in DESCRIPTIVE if job.get(name)}
    story.notes += [f"{name}: {pairs(value)}" for name, value in described.items() if isinstance(value, dict)]
    if context.enforced:
        story.notes.append(enforced_note(context.enforced))
    return {
        "job_id": job["job_id"],
        "name": "",
        **described,
        "state": state.value,
        "headline": story.headline,
        "reasons": [story.headline, *story.reasons, *story.notes],
        "notes": story.notes,
        "next_step": story.steps[0] if story.steps else "nothing to do",
        "next_steps": story.steps,
        "constraints": [],
        "total_hosts": (fit or {}).get("total_nodes"),
        "position": (fit or {}).get("position"),
        "waiting": None,
        "policy": job.get("policy", "priority"),
        "priority": job.get("priority", 50),
        "waiting_s": None,
        "depends_on": [],
        "not_before": None,
        "reservation": None,
        "quota": None,
        "estimated_start": None,
        "held_by": [],
        "binding": None,
        "held_up_by": list((fit or {}).get("held_up_by") or ()),
        "openings": [],
        "attempts": [_attempt(one, context) for one in job["attempts"][-ATTEMPTS_SHOWN:]],
        "stderr_tail": [],
        "explain": dict(fit) if fit else None,
        "steps": None,
        "enforced_by": dict(context.enforced),
        **story.more,
    }


# -- waiting


def _queued(job: JobRecord, context: JobContext) -> _Story:
    fit, now = context.fit, context.now
    story = _why_not_now(job, context)
    position = (fit or {}).get("position")
    open_ones = _open_dependencies(context)
    story.more |= {
        "waiting_s": max(0.0, now - job["submitted_at"]),
        "waiting": max(position, context.waiting) if position else None,
        "depends_on": [{"job_id": name, "state": state} for name, state in sorted(open_ones.items())],
        "not_before": job["not_before"] if job["not_before"] > now else None,
        "openings": list(context.openings),
    }
    story.reasons.append(f"it has been waiting for {duration(now - job['submitted_at'])}")
    story.notes.extend([*share_reasons(fit), *lost_note(job), *waiting_notes(job, now)])
    for unfit in (fit or {}).get("unfit") or ():
        name = _name(unfit["host"], context)
        story.notes.append(f"GPU {unfit['gpu']} of {name} takes nothing new: {unfit['why']}")
    story.notes.extend(f"host: {problem}" for problem in context.problems)
    return story


def _open_dependencies(context: JobContext) -> dict[str, str]:
    return {name: state for name, state in context.dependencies.items() if state != JobState.SUCCEEDED}


def _why_not_now(job: JobRecord, context: JobContext) -> _Story:
    fit, now = context.fit, context.now
    unmet = _open_dependencies(context)
    if unmet:
        shown = listed([f"{name} ({state})" for name, state in sorted(unmet.items())])
        first = sorted(unmet)[0]
        return _Story(f"it depends on {shown}", steps=[f"actorgrid why {first}"])
    if job["not_before"] > now:
        return _between_attempts(job, now)
    if fit is None:
        return _Story(
            "the scheduler did not answer just now",
            steps=["ask again in a moment; actorgrid status shows whether it is restarting"],
        )
    if fit.get("host"):
        return _Story(str(fit["host"]), steps=["wait a moment; actorgrid status and actorgrid doctor tell more"])
    kept_out = _kept_out_by_quota(job, fit, context)
    if kept_out is not None:
        return kept_out
    story = _about_to_start(fit) if fit.get("fits") else _does_not_fit(job, fit, context)
    _reserved(story, fit, context)
    return story


def _kept_out_by_quota(job: JobRecord, fit: FitReport, context: JobContext) -> _Story | None:
    """Explain a quota used up by the user's other work, and how to go on; ``None`` when the job waits for no quota."""
    user = job.get("user_id", "")
    short = shortage(user, context.quotas, job["resources"], context.allocations)
    if short is None:
        if not fit.get("stands_aside"):
            return None
        if kept_out := kept_out_by_tenant(fit):
            return _Story(kept_out, steps=["wait for work of that tenant to end; actorgrid tenant show tells more"])
        headline = f"what is left of the quota of user {user} is kept for another of one's jobs, which comes first"
        return _Story(headline, steps=["wait for that one to start"])
    held = holders_of_user(user, context.allocations, context.jobs)
    raised = f"actorgrid quota shows all quotas; whoever runs the cluster may raise it for {user}"
    story = _Story(f"the quota of user {user} has no room for it: it needs {short.wanted}, with {short.in_use}")
    story.more = {
        "quota": {"user": user, "limits": short.limits, "used": short.used, "short": list(short.short)},
        "held_by": [{**one, "host": _name(one["host_id"], context)} for one in held[:HOLDERS_SHOWN]],
    }
    if short.for_good:
        story.steps = [f"cancel it and ask for less: {user} may not hold as much at once", raised]
        return story
    enough = next((one for one in held if _gives_enough(one, short) and may_go(one, job.get("priority", 50))), None)
    left = [amount_text(name, amount) for name, amount in short.left.items()]
    if all(short.left.values()):
        story.steps.append(f"ask for less: {' and '.join(left)} would be within the quota now")
    if enough is not None:
        title = _title(context.jobs.get(enough["job_id"] or "", NO_JOB))
        story.steps.append(f"actorgrid cancel {enough['job_id']} would make room in the quota: {title}")
    story.steps += [f"wait for work of {user} to end; it is tried again then", raised]
    return story


def _gives_enough(one: Holder, short: Shortage) -> bool:
    """Whether the end of *one* would leave nothing short."""
    given = amounts_held(one)
    return all(
        short.used[name] - given[name] + short.asked[name] <= cast("dict[str, int]", short.limits)[name]
        for name in short.short
    )


def _between_attempts(job: JobRecord, now: float) -> _Story:
    wait = duration(job["not_before"] - now)
    start = {"estimated_start": {"at": job["not_before"], "from": "retry"}}
    if not job["attempts"]:
        return _Story(f"it is tried again in {wait}", steps=["wait a moment"], more=start)
    last = job["attempts"][-1]
    why = (last.get("error") or NO_ERROR).get("message") or "see its log"
    left = job.get("retries_left", 0)
    return _Story(
        f"attempt {last['number']} ended ({why}); the next one starts in {wait}",
        [f"after that, {left} further {'retry' if left == 1 else 'retries'} would be left"],
        [f"actorgrid logs --stderr {job['job_id']}", f"actorgrid cancel {job['job_id']} ends it now"],
        start,
    )


def _ahead(fit: FitReport) -> str:
    ahead = int(fit.get("position") or 1) - 1
    return f"; {counted(ahead, 'job')} {'is' if ahead == 1 else 'are'} ahead" if ahead else ""


def _about_to_start(fit: FitReport) -> _Story:
    ahead = _ahead(fit)
    kept_for = [str(one) for one in fit.get("held_up_by") or ()]
    if kept_for:
        story = _Story(f"there is room for it now, but it is kept for {listed(kept_for)}{ahead}")
        story.steps = [
            "give it a --timeout that ends before that room is needed: then it may go first",
            *(f"actorgrid why {one}" for one in kept_for[:1] if one != OTHERS),
        ]
        return story
    if ahead:
        return _Story(f"there is room for it now{ahead}", steps=["wait: those ahead are tried first"])
    return _Story("it fits now and is about to be placed", steps=["wait a moment"])


def _does_not_fit(job: JobRecord, fit: FitReport, context: JobContext) -> _Story:
    resources = job["resources"]
    total = int(fit.get("total_nodes") or 0)
    failed = {name: count for name, count in (fit.get("failed") or {}).items() if count}
    constraints = [
        {"name": name, "text": CONSTRAINTS.get(name, name.replace("_", " ")), "hosts": count}
        for name, count in sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    ]
    wanted = f"it needs {needs(resources)}"
    kept_out = enforce_less(resources, context.hosts, lambda host: _name(host, context))
    if kept_out and len(kept_out) == len(context.hosts):
        shown = kept_out[:HOSTS_SHOWN]
        return _Story(nowhere_enforced(resources, kept_out), [], [ENFORCE_MORE], {"constraints": constraints}, shown)
    if "gang" in fit and "hosts" in fit:
        story = _Story(
            f"{gang_lacks(resources, fit)}{_ahead(fit)}",
            more={"constraints": constraints},
            reasons=gang_hosts(resources, fit, lambda host: _name(host, context)),
        )
        _how_to_make_room(story, job, fit, context)
        return story
    nearest = fit.get("nearest") or {}
    reasons = [f"{one['text']}: {one['hosts']} of {counted(total, 'host')}" for one in constraints]
    if nearest:
        name = _name(nearest["node"], context)
        has = nearest_has(resources, nearest.get("missing") or {}) or "has no room now"
        headline = f"{wanted}; {name if total == 1 else f'the nearest, {name},'} {has}{_ahead(fit)}"
    elif not total:
        headline = f"{wanted}; there is no host yet"
    else:
        because = ", ".join(f"{one['text']} on {one['hosts']}" for one in constraints) or "none has such a device"
        every = "the only host cannot" if total == 1 else f"none of {total} hosts can"
        headline = f"{wanted}; {every} take it as things are ({because})"
    story = _Story(headline, more={"constraints": constraints}, reasons=[*reasons, *kept_out[:HOSTS_SHOWN]])
    _what_binds(story, resources, context)
    _how_to_make_room(story, job, fit, context)
    return story


def _what_binds(story: _Story, resources: ResourcesRecord, context: JobContext) -> None:
    """Name the resource that is short in all, where one is: the same answer as that of ``status``, for this job."""
    found = binding(resource_use(context.hosts.values(), context.allocations), [resources])
    if found is not None:
        story.more["binding"] = found.to_record()
        what = found.text.rpartition(",")[0]
        story.notes.append(f"short is {what}" + (f"; {found.idle_gpus}" if found.idle_gpus else ""))


def _how_to_make_room(story: _Story, job: JobRecord, fit: FitReport, context: JobContext) -> None:
    """Add who holds the room, when it may come free, and the steps that would help, the likeliest first."""
    resources = job["resources"]
    nearest = fit.get("nearest") or {}
    missing = nearest.get("missing") or {}
    # Room for one member is not yet room for a gang.
    host = None if "gang" in resources else context.hosts.get(nearest.get("node", ""))
    victims: list[str] = []
    fits_from = None
    if host is not None:
        usable = _without_unfit(host, fit)
        held = holders(host, context.allocations, context.jobs)
        victims = freeing(usable, held, resources, int(job.get("priority", 50)))
        fits_from = None if _ahead(fit) else fits_at(usable, held, resources)
        only_gpus = bool(missing) and all(name.startswith("gpu") for name in missing)
        shown = [one for one in held if one["gpu_indexes"] or not only_gpus]
        story.more["held_by"] = [{**one, "host": _name(host["host_id"], context)} for one in shown[:HOLDERS_SHOWN]]
    if fits_from is not None and fits_from > context.now:
        story.more["estimated_start"] = {"at": fits_from, "from": "time_limits"}
        wait = duration(fits_from - context.now)
        story.steps.append(f"wait about {wait}: by then the time limits of what runs there have made room")
    for opening in context.openings:
        less = "ask for less" if opening.startswith("--gpus") else "ask again"
        story.steps.append(f"{less}: with {opening} it would fit now")
    if victims:
        whose = listed([_title(context.jobs.get(one, NO_JOB)) for one in victims])
        where = _name(nearest["node"], context)
        story.steps.append(f"actorgrid cancel {' '.join(victims)} would make room on {where}: {whose}")
    if _ahead(fit) and job.get("priority", 50) < PRIORITY_MAX:
        story.steps.append(f"submit it again with --priority above {job.get('priority', 50)} to go before the others")
    if (fit.get("failed") or {}).get("draining"):
        story.steps.append("actorgrid hosts shows which hosts take nothing new, and why")
    fits = int(fit.get("members_that_fit") or 0)
    if "gang" in resources and fits:
        now = f"--gang {fits}" if fits > 1 else "one member (without --gang)"
        story.steps.append(f"ask for less: with {now} it would fit now")
    if not nearest and not fits:
        story.steps.append(f"add a host with {needs(resources).removesuffix(' on one host')}, or ask for less")
    elif "estimated_start" not in story.more:
        story.steps.append("wait for running work to end; actorgrid ps shows what runs")


def _without_unfit(host: HostRecord, fit: FitReport) -> HostRecord:
    """The record of *host* without the devices that take nothing new."""
    unfit = {one["gpu"] for one in fit.get("unfit") or () if one["host"] == host["host_id"]}
    return {**host, "devices": [device for device in host["devices"] if device["index"] not in unfit]}


def _title(job: JobRecord) -> str:
    return f"{job.get('name') or job.get('job_id', '?')} (priority {job.get('priority', 50)})"


def _reserved(story: _Story, fit: FitReport, context: JobContext) -> None:
    """Explain by the scheduler's reservation, which counts for more than anything guessed."""
    reservation = fit.get("reservation")
    if not reservation:
        return
    starts_at = reservation.get("starts_at", reservation.get("start"))
    nodes, stopping = list(reservation.get("nodes") or ()), [str(one) for one in reservation.get("stopping") or ()]
    where = listed([_name(node, context) for node in nodes])
    story.more["reservation"] = {"starts_at": starts_at, "nodes": nodes, "stopping": stopping}
    if stopping:
        story.notes.append(
            f"{listed(stopping)} {'is' if len(stopping) == 1 else 'are'} being stopped to make room for it"
        )
    on = f" on {where}" if where else ""
    if starts_at is None:
        story.reasons.append(f"room is kept for it{on}")
        return
    story.more["estimated_start"] = {"at": starts_at, "from": "reservation"}
    story.steps = [step for step in story.steps if not step.startswith("wait ")]
    if starts_at <= context.now:
        story.reasons.append(f"its room{on} is due")
        story.steps.insert(0, "wait a moment")
        return
    wait = duration(starts_at - context.now)
    story.reasons.append(f"room is kept for it{on}, in {wait} at the latest")
    story.steps.insert(0, f"wait about {wait}: its room{on} is reserved")


# -- placed and running


def _name(host_id: str, context: JobContext) -> str:
    """The name of a host for people: its hostname, where no two share it."""
    name = str(context.hosts.get(host_id, NO_HOST).get("hostname") or host_id)
    twins = sum(host.get("hostname") == name for host in context.hosts.values())
    return name if twins <= 1 else f"{name} ({host_id})"


def _where(attempt: AttemptRecord, context: JobContext) -> str:
    members = attempt.get("members") or []
    if members:
        hosts = list(dict.fromkeys(member["host"] for member in members))
        where = listed([_name(host, context) for host in hosts])
        return f"{len(members)} members on {where}"
    indexes = attempt.get("gpu_indexes") or []
    gpus = f"GPU {', '.join(str(index) for index in indexes)}" if indexes else "no GPU"
    host = attempt.get("host")
    return (
        f"{gpus} of {_name(host, context)}"
        if host and indexes
        else f"{gpus} on {_name(host, context)}"
        if host
        else gpus
    )


def _placed(job: JobRecord, context: JobContext) -> _Story:
    attempt = job["attempts"][-1]
    since = context.now - (attempt.get("placed_at") or context.now)
    story = _Story(
        f"its place is committed ({_where(attempt, context)}); its worker is being started",
        [f"placed {duration(since)} ago"],
        [f"actorgrid logs -f {job['job_id']}"],
    )
    delay = context.start_delay or {}
    if since > _SOON_S or delay.get("waits_for"):
        if delay.get("waits_for"):
            story.notes.append(f"its host waits for {delay['waits_for']}")
        left_s = delay.get("left_s")
        if left_s is not None:
            story.notes.append(
                f"if it has not started {f'in {duration(left_s)}' if left_s > 0 else 'now'}, its host gives it back "
                "(work.start_timeout_s), and it is placed again, free of charge"
            )
        story.steps.insert(0, "wait: it starts, or is placed again by itself; actorgrid hosts shows how its host is")
    story.notes.extend(f"host: {problem}" for problem in context.problems)
    return _stopping(story, job, context)


def _running(job: JobRecord, context: JobContext) -> _Story:
    attempt = job["attempts"][-1]
    began = attempt.get("started_at") or attempt.get("placed_at") or context.now
    story = _Story(
        f"attempt {attempt['number']} has been running for {duration(context.now - began)}"
        f"{' with' if attempt.get('members') else ' on'} {_where(attempt, context)}",
        steps=[f"actorgrid logs -f {job['job_id']}"],
    )
    limit = job.get("max_execution_time_s")
    if limit:
        story.notes.append(f"it is stopped at its time limit, in {duration(began + limit - context.now)}")
    return _stopping(story, job, context)


def _stopping(story: _Story, job: JobRecord, context: JobContext) -> _Story:
    host = job["attempts"][-1].get("host") or ""
    story.notes.extend([*lost_note(job), *context.unsure])
    if not context.unsure:
        story.notes.extend(away_note(job, _name(host, context), context.away.get(host)))
    now = context.now
    if job["cancel_requested"]:
        story.notes.append("it was asked to stop; it is killed when its grace is over")
        story.steps = ["wait a moment; it is killed when its grace (work.kill_grace_s) is over"]
        return story
    stopped = stopped_for_another(job, now)
    if stopped:
        story.notes.append(stopped)
        whom = cast("PreemptionRecord", job["attempts"][-1]["preemption"])["for_job"]
        story.steps = [f"wait: it starts again by itself; actorgrid why {whom}"]
    story.notes.extend(gang_ending(job))
    story.notes.extend(deadline_note(job, now))
    return story


# -- ended


def _attempt(attempt: AttemptRecord, context: JobContext) -> dict[str, Any]:
    began, ended = attempt.get("started_at"), attempt.get("ended_at")
    return {
        "number": attempt["number"],
        "state": attempt.get("state"),
        "host": _name(attempt["host"], context) if attempt.get("host") else None,
        "gpu_indexes": list(attempt.get("gpu_indexes") or ()),
        "ran_s": max(0.0, (ended or context.now) - began) if began else None,
        "exit_code": attempt.get("exit_code"),
        "signal": attempt.get("signal"),
        "error": (attempt.get("error") or NO_ERROR).get("message"),
    }


def _ran(job: JobRecord) -> float | None:
    last = job["attempts"][-1] if job["attempts"] else NO_ATTEMPT
    began, ended = last.get("started_at"), last.get("ended_at") or job.get("ended_at")
    return ended - began if began and ended else None


def _ago(job: JobRecord, context: JobContext) -> str:
    ended = job.get("ended_at")
    return f", {duration(context.now - ended)} ago" if ended else ""


def _succeeded(job: JobRecord, context: JobContext) -> _Story:
    ran = _ran(job)
    took = f"it ran for {duration(ran)}" if ran is not None else "it is done"
    story = _Story(f"{took}{_ago(job, context)}", steps=[f"actorgrid logs {job['job_id']}"])
    made = len(job["attempts"])
    if made > 1:
        story.notes.append(f"{made} attempts were made")
    story.notes.extend(late_notes(job))
    return story


def _cancelled(job: JobRecord, context: JobContext) -> _Story:
    said = (job.get("error") or NO_ERROR).get("message") or "it was cancelled"
    return _Story(f"{said}{_ago(job, context)}", steps=["submit it again if you still want it"])


def _failed(job: JobRecord, context: JobContext) -> _Story:
    last = job["attempts"][-1] if job["attempts"] else NO_ATTEMPT
    error = job.get("error") or last.get("error") or NO_ERROR
    details = error.get("details") or {}
    headline = error.get("message") or f"it ended as {job['state']}"
    steps = []
    root = context.root
    if root is not None:
        cause = (root.get("error") or NO_ERROR).get("message") or f"it ended as {root['state']}"
        headline = f"job {root['job_id']} ({root.get('name', '')}), which it waited for, {root['state']}: {cause}"
        steps.append(f"actorgrid why {root['job_id']}")
    reasons = [f"asked: {error['asked']}"] if error.get("asked") and root is None else []
    if error.get("found") and root is None:
        reasons.append(f"found: {error['found']}")
    made = len(job["attempts"])
    if made:
        ran = _ran(job)
        lasted = f"; the last ran for {duration(ran)}" if ran is not None else ""
        reasons.append(("one attempt was made" if made == 1 else f"{made} attempts were made") + lasted)
    else:
        reasons.append("it never started")
    hint = str(error.get("hint") or "")
    # A time or memory limit is said below, with the figure.
    if hint and root is None and error.get("code") not in ("TaskTimedOut", "MemoryLimitExceeded"):
        steps.append(hint)
    steps += [step for step in _after_failure(job, error, last) if step not in steps]
    steps = steps or ["submit it again if you still want it"]
    tail = str(details.get("stderr") or details.get("traceback") or "").rstrip().splitlines()[-STDERR_LINES:]
    return _Story(headline, reasons, steps, {"stderr_tail": tail})


def _after_failure(job: JobRecord, error: FitReport, last: FitReport) -> list[str]:
    """The steps that help against this kind of failure, beside the error's own hint."""
    steps = []
    code = error.get("code")
    if code == "TaskTimedOut":
        limit = job.get("max_execution_time_s")
        steps.append(f"give it longer{f' than {duration(limit)}' if limit else ''} with --timeout")
    elif code == "MemoryLimitExceeded":
        asked = int(job["resources"].get("memory_mib", 0))
        steps.append(f"ask for more than {mebibytes(asked)} with --memory" if asked else "ask for more with --memory")
    elif last.get("signal") == SIGKILL:
        steps.append("if nobody killed it, the host ran out of memory (dmesg tells): reserve enough with --memory")
    elif last.get("signal") == SIGSEGV:
        steps.append("it crashed in native code: --env PYTHONFAULTHANDLER=1 shows where in a Python program")
    if job["attempts"] and not str(error.get("hint") or "").startswith("actorgrid logs"):
        steps.append(f"actorgrid logs --stderr {job['job_id']}")
    ran_at_all = (error.get("details") or {}).get("exit_code") not in NOT_STARTED
    if code in ("TaskFailed", "WorkerLost") and len(job["attempts"]) == 1 and ran_at_all:
        steps.append("--retries N would try again after a failure that may pass")
    return steps
