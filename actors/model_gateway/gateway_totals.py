"""What the workers of one host report, as one: sums, and of times the worst. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actorgrid.actors.serving.table import DemandReport, ReplicaReport, RevisionReport, ServiceDemand


def summed(reports: Iterable[DemandReport]) -> tuple[ServiceDemand, ...]:
    """The demand for each service at all workers."""
    found: dict[str, list[ServiceDemand]] = {}
    for report in reports:
        for demand in report.demands:
            found.setdefault(demand.service, []).append(demand)
    return tuple(_demand(service, demands) for service, demands in found.items())


def _demand(service: str, demands: list[ServiceDemand]) -> ServiceDemand:
    replicas: dict[tuple[str, str], list[ReplicaReport]] = {}
    revisions: dict[str, list[RevisionReport]] = {}
    for demand in demands:
        for replica in demand.replicas:
            replicas.setdefault((replica.replica_id, replica.attempt), []).append(replica)
        for revision in demand.revisions:
            revisions.setdefault(revision.revision, []).append(revision)
    return ServiceDemand(
        service=service,
        in_flight=sum(each.in_flight for each in demands),
        held=sum(each.held for each in demands),
        oldest_held_s=max(each.oldest_held_s for each in demands),
        requests_total=sum(each.requests_total for each in demands),
        errors_total=sum(each.errors_total for each in demands),
        last_request_at=max(each.last_request_at for each in demands),
        replicas=tuple(_replica(*place, told) for place, told in replicas.items()),
        revisions=_revisions(revisions),
    )


def _replica(replica_id: str, attempt: str, told: list[ReplicaReport]) -> ReplicaReport:
    return ReplicaReport(
        replica_id,
        attempt,
        sum(each.in_flight for each in told),
        sum(each.requests_total for each in told),
        sum(each.failures_total for each in told),
        any(each.is_ejected for each in told),
    )


def _revisions(told: Mapping[str, list[RevisionReport]]) -> tuple[RevisionReport, ...]:
    made = [
        RevisionReport(
            revision,
            sum(each.requests_total for each in reports),
            sum(each.failures_total for each in reports),
            max(each.first_byte_p50_s for each in reports),
            max(each.first_byte_p99_s for each in reports),
        )
        for revision, reports in told.items()
    ]
    return tuple(sorted(made, key=lambda each: each.requests_total)[-8:])
