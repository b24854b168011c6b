"""What doors say of a job's notifications: whom it tells, with nothing secret of an address, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actorgrid.actors.ledger.notice_records import NoticeRecord
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.notifications.allowed_addresses import networks_of, refusal
from actorgrid.actors.notifications.destinations import read_operator_file
from actorgrid.actors.notifications.sending import operator_file
from actorgrid.errors import BadRequest, TargetNotAllowed
from actorgrid.notification_words import WEBHOOK, is_targets, shown_target

if TYPE_CHECKING:
    from .server.application import GatewayApp

Plain = dict[str, Any]


def notices_shown(job: JobRecord, notices: Mapping[str, NoticeRecord]) -> Plain:
    """The fields of a job's answer that are about its notifications; none, where it tells nobody."""
    targets = job.get("notify")
    if not targets or not is_targets(targets):
        return {}
    ours = [record for record in notices.values() if record["job_id"] == job["job_id"]]
    return {"notify": [shown_target(each) for each in targets], "notifications": [notice_view(each) for each in ours]}


def notice_view(record: NoticeRecord, tried: Mapping[str, Any] | None = None) -> Plain:
    """A notice as people see it; *tried*: how far the sending is, where that is known."""
    state = tried or {}
    failed = record["failed_at"] is not None
    return {
        "notice_id": record["notice_id"],
        "job_id": record["job_id"],
        "name": record["name"],
        "user_id": record["user_id"],
        "target": shown_target(record["target"]),
        "event": record["event"],
        "at": record["at"],
        "state": "failed" if failed else "waiting",
        "failed_at": record["failed_at"],
        "failure": record["failure"] or str(state.get("last_failure") or ""),
        "tries": record["tries"] if failed else int(state.get("tries") or 0),
        "next_at": None if failed else state.get("next_at"),
    }


def check_targets(app: GatewayApp, targets: Sequence[str]) -> None:
    """Look at targets before a job is accepted that names them; reads a file. Raises UnknownTarget, TargetNotAllowed,
    KeyExposed, MalformedConfig."""
    settings = app.settings.notifications
    operator = read_operator_file(operator_file(settings, app.host.paths.data_dir))
    for target in targets:
        destination = operator.destination(target)
        if destination.url and not destination.trusted:
            refused = _refused(destination.url, settings.allowed_networks)
            if refused:
                raise TargetNotAllowed(
                    "that webhook must not be reached",
                    asked=shown_target(f"{WEBHOOK}:{destination.url}"),
                    found=refused,
                    hint="name a public address, or ask the operator for a named target",
                )


def _refused(url: str, allowed: Sequence[str]) -> str:
    """Why an address that is written as numbers is refused; names are looked up when it is sent."""
    import ipaddress
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.partition("%")[0])
    except ValueError:
        return ""
    return refusal(address, networks_of(allowed))


def with_defaults(app: GatewayApp, targets: list[str], events: list[str]) -> Plain:
    """``notify`` and ``notify_on`` of what is submitted here: what was said, else the operator's defaults."""
    if targets:
        return {"notify": targets, "notify_on": events}
    defaults = app.settings.notifications
    if not defaults.default_targets:
        return {}
    if events:
        raise BadRequest("notify_on without notify", hint="say whom it is to tell")
    return {"notify": list(defaults.default_targets), "notify_on": list(defaults.default_events)}
