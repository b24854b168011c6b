"""Alerts for Prometheus: each names what is wrong, how bad, and the command that says more."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict


class Severity(StrEnum):
    """Who is told: ``critical`` wakes somebody, ``warning`` waits for the morning."""

    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert. *expression* is PromQL over our own figures; it has to hold for *wait* before it fires."""

    name: str
    expression: str
    wait: str
    severity: Severity
    summary: str
    action: str
    """The command to look with, and what is usual."""


# Each host tells figures of the whole cluster, too; those are taken once, from whichever host has most of it.
RULES = (
    AlertRule(
        "ActorgridHostDown",
        'up{job="actorgrid"} == 0',
        "1m",
        Severity.CRITICAL,
        "{{ $labels.instance }} does not answer",
        "actorgrid hosts on another host; actorgrid why host HOST",
    ),
    AlertRule(
        "ActorgridNoQuorum",
        "max(actorgrid_cluster_no_quorum) == 1 and max(actorgrid_cluster_can_commit) == 0",
        "1m",
        Severity.CRITICAL,
        "no host hears a majority of the voters: nothing new is accepted",
        "actorgrid status on each host; start the voters that are down",
    ),
    AlertRule(
        "ActorgridStalled",
        "max by (instance) (actorgrid_cluster_stalled) == 1",
        "1m",
        Severity.CRITICAL,
        "commits do not come through at {{ $labels.instance }}",
        "actorgrid doctor there: a full disk, or one that hangs",
    ),
    AlertRule(
        "ActorgridDegraded",
        "max by (instance) (actorgrid_cluster_degraded) == 1",
        "10m",
        Severity.WARNING,
        "{{ $labels.instance }} finds the cluster degraded",
        "actorgrid status names what is missing",
    ),
    AlertRule(
        "ActorgridHostsMissing",
        "max(actorgrid_cluster_hosts) - max(actorgrid_cluster_hosts_present) > 0",
        "5m",
        Severity.WARNING,
        "{{ $value }} hosts of the cluster are not there",
        "actorgrid hosts; actorgrid why host HOST; actorgrid leave --host HOST for one that does not come back",
    ),
    AlertRule(
        "ActorgridServersRestart",
        "sum by (instance) (increase(actorgrid_server_restarts_total[10m])) > 3",
        "0m",
        Severity.WARNING,
        "servers of {{ $labels.instance }} were restarted {{ $value | humanize }} times in ten minutes",
        "actorgrid inspect there, and agent.log in its data directory",
    ),
    AlertRule(
        "ActorgridLedgerSlow",
        "max by (instance) (actorgrid_ledger_commit_seconds_p99) > 0.5",
        "10m",
        Severity.WARNING,
        "one commit of a hundred takes {{ $value | humanizeDuration }} at {{ $labels.instance }}",
        "look at that host's disk (iostat) and at its way to the other voters",
    ),
    AlertRule(
        "ActorgridStateDown",
        "max by (instance) (actorgrid_state_down) == 1",
        "1m",
        Severity.CRITICAL,
        "the shared state of {{ $labels.instance }} cannot be written",
        "actorgrid doctor there: its disk refused a write",
    ),
    AlertRule(
        "ActorgridGpuUnhealthy",
        'max by (instance, gpu, uuid) (actorgrid_gpu_health{state=~"failed|lost"}) == 1',
        "2m",
        Severity.CRITICAL,
        "GPU {{ $labels.gpu }} of {{ $labels.instance }} is broken or gone",
        "actorgrid gpus says why; a reset or another device is needed",
    ),
    AlertRule(
        "ActorgridGpuUnknown",
        'max by (instance, gpu, uuid) (actorgrid_gpu_health{state="unknown"} and on (instance, gpu)'
        ' actorgrid_gpu_memory_total_bytes{source="probed"}) == 1',
        "10m",
        Severity.WARNING,
        "nobody can say how GPU {{ $labels.gpu }} of {{ $labels.instance }} is",
        "actorgrid doctor there says what its driver answers",
    ),
    AlertRule(
        "ActorgridGpuHot",
        "max by (instance) (actorgrid_gpus_heat_drained) > 0",
        "5m",
        Severity.WARNING,
        "{{ $value }} GPUs of {{ $labels.instance }} are too hot to take work",
        "actorgrid gpus; look at the fans and at the air",
    ),
    AlertRule(
        "ActorgridGpuEmergency",
        "max by (instance) (actorgrid_gpus_heat_emergencies) > 0",
        "0m",
        Severity.CRITICAL,
        "{{ $value }} GPUs of {{ $labels.instance }} are about to switch themselves off",
        "actorgrid drain HOST; gpus.heat_control: stop ends work in time",
    ),
    AlertRule(
        "ActorgridGpuForeignProcesses",
        "max by (instance) (actorgrid_gpu_processes_ungranted) > 0",
        "10m",
        Severity.WARNING,
        "{{ $value }} processes hold GPUs of {{ $labels.instance }} without a grant",
        "actorgrid inspect gpu_coordinator, under gpu_users",
    ),
    AlertRule(
        "ActorgridQueueStands",
        "max(actorgrid_queue_length) > 0 and max(increase(actorgrid_grants_total[30m])) == 0",
        "30m",
        Severity.WARNING,
        "{{ $value }} jobs wait, and none was placed in half an hour",
        "actorgrid why JOB says what each waits for",
    ),
    AlertRule(
        "ActorgridJobsFail",
        "max(increase(actorgrid_jobs_failed_total[30m]))"
        " > 10 and max(increase(actorgrid_jobs_failed_total[30m]))"
        " > max(increase(actorgrid_jobs_succeeded_total[30m]))",
        "0m",
        Severity.WARNING,
        "more jobs failed than succeeded in half an hour ({{ $value | humanize }})",
        "actorgrid ps --state failed; actorgrid why JOB",
    ),
    AlertRule(
        "ActorgridLeasesLapse",
        "sum by (instance) (increase(actorgrid_lease_lapses_total[15m])) > 0",
        "0m",
        Severity.WARNING,
        "{{ $labels.instance }} was cut off for so long that its work ended",
        "actorgrid why host HOST: its network, or a pause of the whole machine",
    ),
)


class _Labels(TypedDict):
    severity: str


class _Annotations(TypedDict):
    summary: str
    action: str


_Rule = TypedDict("_Rule", {"alert": str, "expr": str, "for": str, "labels": _Labels, "annotations": _Annotations})


class _Group(TypedDict):
    name: str
    rules: list[_Rule]


class RuleFile(TypedDict):
    """What a rule file of Prometheus holds (Prometheus, Alerting rules)."""

    groups: list[_Group]


def rule_file() -> RuleFile:
    """All alerts, as a rule file has them."""
    rules: list[_Rule] = [
        {
            "alert": rule.name,
            "expr": rule.expression,
            "for": rule.wait,
            "labels": {"severity": rule.severity.value},
            "annotations": {"summary": rule.summary, "action": rule.action},
        }
        for rule in RULES
    ]
    return {"groups": [{"name": "actorgrid", "rules": rules}]}
