"""The alerts there are: when each is due, how bad it is, and the command that says more. Tables, no I/O.

Each has an expression for Prometheus and the same condition for us, over the same figures: what is written for
Prometheus (``actorgrid monitoring``) and what fires here comes from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from .figures import ABSENT_STATES, AlertFigures

Condition = Callable[[AlertFigures], Mapping[str, float]]
"""By what is concerned (empty: the host, or the cluster, as a whole) the value that is out of bounds."""


class Severity(StrEnum):
    """Who is told: ``critical`` wakes somebody, ``warning`` waits for the morning."""

    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert. *expression* is PromQL over our own figures; it has to hold for *wait_s* before it fires.

    *of_cluster*: whoever leads decides it, for all; else each host, for itself.
    """

    name: str
    expression: str
    wait_s: float
    severity: Severity
    summary: str
    """For Prometheus, whose words stand in braces."""
    action: str
    """The command to look with, and what is usual."""
    condition: Condition
    said: str
    """As ``summary``, here: ``{host}``, ``{subject}`` and ``{value:g}`` stand for what fired."""
    of_cluster: bool = False


def above(name: str, limit: float) -> Condition:
    """While a figure is above *limit*."""
    return lambda figures: {"": value} if (value := figures.values.get(name, 0.0)) > limit else {}


def grew(name: str, over_s: float, by: float) -> Condition:
    """While a figure that counts up has grown by more than *by* within *over_s*."""
    return lambda figures: {"": found} if (found := figures.increase(name, over_s) or 0.0) > by else {}


def _no_quorum(figures: AlertFigures) -> Mapping[str, float]:
    lacks = figures.values.get("cluster_no_quorum", 0.0) == 1 and figures.values.get("cluster_can_commit", 1.0) == 0
    return {"": 1.0} if lacks else {}


def _hosts_away(figures: AlertFigures) -> Mapping[str, float]:
    return {host.name: 1.0 for host in figures.hosts if host.presence in ABSENT_STATES}


def _devices(*states: str, probed: bool = False) -> Condition:
    return lambda figures: {
        each.name: 1.0 for each in figures.devices if each.health in states and (each.probed or not probed)
    }


def _queue_stands(figures: AlertFigures) -> Mapping[str, float]:
    long_s = figures.thresholds.queue_stands_s
    waiting = figures.values.get("queue_length", 0.0)
    if not waiting or figures.known_for_s("grants_total") < long_s * 0.9:
        return {}
    return {"": waiting} if not figures.increase("grants_total", long_s) else {}


def _jobs_fail(figures: AlertFigures) -> Mapping[str, float]:
    failed = figures.increase("jobs_failed_total", 1_800.0) or 0.0
    return {"": failed} if failed > 10 and failed > (figures.increase("jobs_succeeded_total", 1_800.0) or 0.0) else {}


def _disk(figures: AlertFigures) -> Mapping[str, float]:
    free = figures.values.get("disk_free_ratio")
    return {"": 100 * free} if free is not None and free < figures.thresholds.disk_free_ratio else {}


def _certificate(figures: AlertFigures) -> Mapping[str, float]:
    left_s = figures.values.get("certificate_left_seconds")
    return {"": left_s / 86_400} if left_s is not None and left_s < figures.thresholds.certificate_left_s else {}


def _clock(figures: AlertFigures) -> Mapping[str, float]:
    offset_s = figures.values.get("clock_offset_seconds", 0.0)
    return {"": offset_s} if abs(offset_s) > figures.thresholds.clock_offset_s else {}


# Each host tells figures of the whole cluster, too; for Prometheus those are taken once, from whichever has most of it.
RULES = (
    AlertRule(
        "ActorgridHostDown",
        'up{job="actorgrid"} == 0',
        60,
        Severity.CRITICAL,
        "{{ $labels.instance }} does not answer",
        "actorgrid hosts on another host; actorgrid why host HOST; actorgrid leave --host HOST for one that is gone",
        _hosts_away,
        "host {subject} is not heard of",
        of_cluster=True,
    ),
    AlertRule(
        "ActorgridNoQuorum",
        "max(actorgrid_cluster_no_quorum) == 1 and max(actorgrid_cluster_can_commit) == 0",
        60,
        Severity.CRITICAL,
        "no host hears a majority of the voters: nothing new is accepted",
        "actorgrid status on each host; start the voters that are down",
        _no_quorum,
        "{host} hears no majority of the voters: nothing new is accepted",
    ),
    AlertRule(
        "ActorgridStalled",
        "max by (instance) (actorgrid_cluster_stalled) == 1",
        60,
        Severity.CRITICAL,
        "commits do not come through at {{ $labels.instance }}",
        "actorgrid doctor there: a full disk, or one that hangs",
        above("cluster_stalled", 0),
        "commits do not come through at {host}",
    ),
    AlertRule(
        "ActorgridDegraded",
        "max by (instance) (actorgrid_cluster_degraded) == 1",
        600,
        Severity.WARNING,
        "{{ $labels.instance }} finds the cluster degraded",
        "actorgrid status names what is missing",
        above("cluster_degraded", 0),
        "the cluster is degraded",
        of_cluster=True,
    ),
    AlertRule(
        "ActorgridHostsMissing",
        "max(actorgrid_cluster_hosts) - max(actorgrid_cluster_hosts_present) > 0",
        300,
        Severity.WARNING,
        "{{ $value }} hosts of the cluster are not there",
        "actorgrid hosts; actorgrid why host HOST; actorgrid leave --host HOST for one that does not come back",
        lambda figures: {"": float(len(away))} if len(away := _hosts_away(figures)) > 1 else {},
        "{value:g} hosts of the cluster are not there",
        of_cluster=True,
    ),
    AlertRule(
        "ActorgridServersRestart",
        "sum by (instance) (increase(actorgrid_server_restarts_total[10m])) > 3",
        0,
        Severity.WARNING,
        "servers of {{ $labels.instance }} were restarted {{ $value | humanize }} times in ten minutes",
        "actorgrid inspect there, and agent.log in its data directory",
        grew("server_restarts_total", 600, 3),
        "servers of {host} were restarted {value:g} times in ten minutes",
    ),
    AlertRule(
        "ActorgridLedgerSlow",
        "max by (instance) (actorgrid_ledger_commit_seconds_p99) > 0.5",
        600,
        Severity.WARNING,
        "one commit of a hundred takes {{ $value | humanizeDuration }} at {{ $labels.instance }}",
        "look at that host's disk (iostat) and at its way to the other voters",
        above("ledger_commit_seconds_p99", 0.5),
        "one commit of a hundred takes {value:.2g} s at {host}",
    ),
    AlertRule(
        "ActorgridStateDown",
        "max by (instance) (actorgrid_state_down) == 1",
        60,
        Severity.CRITICAL,
        "the shared state of {{ $labels.instance }} cannot be written",
        "actorgrid doctor there: its disk refused a write",
        above("state_down", 0),
        "the shared state of {host} cannot be written",
    ),
    AlertRule(
        "ActorgridGpuUnhealthy",
        'max by (instance, gpu, uuid) (actorgrid_gpu_health{state=~"failed|lost"}) == 1',
        120,
        Severity.CRITICAL,
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} is broken or gone",
        "actorgrid gpus says why (ECC, XID, lost); a reset or another device is needed",
        _devices("failed", "lost"),
        "GPU {subject} of {host} is broken or gone",
    ),
    AlertRule(
        "ActorgridGpuUnknown",
        'max by (instance, gpu, uuid) (actorgrid_gpu_health{state="unknown"} and on (instance, gpu)'
        ' actorgrid_gpu_memory_total_bytes{source="probed"}) == 1',
        600,
        Severity.WARNING,
        "nobody can say how GPU {{ $labels.gpu }} of {{ $labels.instance }} is",
        "actorgrid doctor there says what its driver answers",
        _devices("unknown", probed=True),
        "nobody can say how GPU {subject} of {host} is",
    ),
    AlertRule(
        "ActorgridGpuHot",
        "max by (instance) (actorgrid_gpus_heat_drained) > 0",
        300,
        Severity.WARNING,
        "{{ $value }} GPUs of {{ $labels.instance }} are too hot to take work",
        "actorgrid gpus; look at the fans and at the air",
        above("gpus_heat_drained", 0),
        "{value:g} GPUs of {host} are too hot to take work",
    ),
    AlertRule(
        "ActorgridGpuEmergency",
        "max by (instance) (actorgrid_gpus_heat_emergencies) > 0",
        0,
        Severity.CRITICAL,
        "{{ $value }} GPUs of {{ $labels.instance }} are about to switch themselves off",
        "actorgrid drain HOST; gpus.heat_control: stop ends work in time",
        above("gpus_heat_emergencies", 0),
        "{value:g} GPUs of {host} are about to switch themselves off",
    ),
    AlertRule(
        "ActorgridGpuForeignProcesses",
        "max by (instance) (actorgrid_gpu_processes_ungranted) > 0",
        600,
        Severity.WARNING,
        "{{ $value }} processes hold GPUs of {{ $labels.instance }} without a grant",
        "actorgrid inspect gpu_coordinator, under gpu_users",
        above("gpu_processes_ungranted", 0),
        "{value:g} processes hold GPUs of {host} without a grant",
    ),
    AlertRule(
        "ActorgridQueueStands",
        "max(actorgrid_queue_length) > 0 and max(increase(actorgrid_grants_total[30m])) == 0",
        1_800,
        Severity.WARNING,
        "{{ $value }} jobs wait, and none was placed in half an hour",
        "actorgrid why JOB says what each waits for",
        _queue_stands,
        "{value:g} jobs wait, and none was placed for a long time",
        of_cluster=True,
    ),
    AlertRule(
        "ActorgridJobsFail",
        "max(increase(actorgrid_jobs_failed_total[30m]))"
        " > 10 and max(increase(actorgrid_jobs_failed_total[30m]))"
        " > max(increase(actorgrid_jobs_succeeded_total[30m]))",
        0,
        Severity.WARNING,
        "more jobs failed than succeeded in half an hour ({{ $value | humanize }})",
        "actorgrid ps --state failed; actorgrid why JOB",
        _jobs_fail,
        "more jobs failed than succeeded in half an hour ({value:g})",
        of_cluster=True,
    ),
    AlertRule(
        "ActorgridLeasesLapse",
        "sum by (instance) (increase(actorgrid_lease_lapses_total[15m])) > 0",
        0,
        Severity.WARNING,
        "{{ $labels.instance }} was cut off for so long that its work ended",
        "actorgrid why host HOST: its network, or a pause of the whole machine",
        grew("lease_lapses_total", 900, 0),
        "{host} was cut off for so long that its work ended",
    ),
    AlertRule(
        "ActorgridDiskNearlyFull",
        "min by (instance) (actorgrid_disk_free_ratio) < 0.05",
        300,
        Severity.WARNING,
        "{{ $value | humanizePercentage }} of the data directory's disk are free at {{ $labels.instance }}",
        "actorgrid doctor there; payloads and outputs of ended jobs go by themselves, other files do not",
        _disk,
        "{value:.1f} % of the data directory's disk are free at {host}",
    ),
    AlertRule(
        "ActorgridCertificateExpires",
        "min by (instance) (actorgrid_certificate_left_seconds) < 86400",
        600,
        Severity.CRITICAL,
        "the certificate of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
        "actorgrid ca renew there; its agent.log says why it was not renewed by itself",
        _certificate,
        "the certificate of {host} ends in {value:.1f} days",
    ),
    AlertRule(
        "ActorgridClockOff",
        "max by (instance) (abs(actorgrid_clock_offset_seconds)) > 1",
        120,
        Severity.WARNING,
        "the clock of {{ $labels.instance }} is off by {{ $value | humanizeDuration }}",
        "look at its time service: chronyc tracking, timedatectl",
        _clock,
        "the clock of {host} is off by {value:.1f} s against the other hosts'",
    ),
    AlertRule(
        "ActorgridNotificationsFail",
        "max(actorgrid_notices_failed) > 0",
        0,
        Severity.WARNING,
        "{{ $value }} notifications of jobs could not be sent",
        "actorgrid notifications says why; actorgrid notifications clear forgets them",
        above("notices_failed", 0),
        "{value:g} notifications of jobs could not be sent",
        of_cluster=True,
    ),
)
