"""What a shell may complete: jobs, hosts, locks, keys of the shared state, settings; as the cluster has them now.

A person waits for each answer at a prompt, so it takes a second at most, and whatever fails gives no candidates and
says nothing: the command itself will say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from .call import CommandContext
from .printing import visible

if TYPE_CHECKING:
    from actorgrid.client.http import AdminHttp

PATIENCE_S = 1.0
SHOWN = 100
"""Candidates at most: more than fit on a screen tell nobody anything."""
LIVE = "queued,placed,running"
Candidates = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _candidates(find: Callable[[AdminHttp, str], Iterable[tuple[str, str]]]) -> Candidates:
    """What click asks for candidates, of *find*, which gives values and what they are."""

    def complete(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        call = ctx.find_object(CommandContext) or CommandContext()
        try:
            http = _hasty(call)
            try:
                found = list(find(http, begun))
            finally:
                http.close()
        except Exception:  # noqa: BLE001 - a traceback in the middle of somebody's prompt helps nobody
            return []
        return [_item(value, about) for value, about in found if _may_be_typed(value)][:SHOWN]

    return complete


def _hasty(call: CommandContext) -> AdminHttp:
    from actorgrid.client.find import fingerprint, locate
    from actorgrid.client.http import AdminHttp

    url, token = locate(call.data_dir, call.url)
    return AdminHttp(url, token, timeout_s=PATIENCE_S, retry_s=0.0, ca_fingerprint=fingerprint(call.ca_fingerprint))


def _may_be_typed(value: str) -> bool:
    """Whether a shell takes it for one word as it is: users give names, and completion puts them on a command line.

    A colon parts words in bash, and a value from its description in zsh.
    """
    return bool(value) and value.isprintable() and all(sign.isalnum() or sign in "-_./@%+,=" for sign in value)


def _item(value: str, about: str) -> CompletionItem:
    # The shells' scripts read a line, or three, for each candidate.
    return CompletionItem(value, help=visible(about, cell=True)[:80] or None)


def _jobs(states: str | None) -> Candidates:
    def find(http: AdminHttp, begun: str) -> list[tuple[str, str]]:
        jobs = _listed(http, states, begun)
        if not jobs and begun:  # the name of a job stands for the newest that has it
            jobs = [job for job in _listed(http, states, "") if str(job["name"]).startswith(begun)][:1]
        return [(str(job["job_id"]), f"{job['state']}: {job['name']}") for job in jobs]

    return _candidates(find)


def _listed(http: AdminHttp, states: str | None, prefix: str) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = http.get("/api/jobs", state=states, prefix=prefix or None, limit=SHOWN)["jobs"]
    return jobs


def _find_hosts(http: AdminHttp, begun: str) -> list[tuple[str, str]]:
    from .host_names import address

    hosts: list[dict[str, Any]] = http.get("/api/hosts")["hosts"]
    names = [str(host["hostname"]) for host in hosts]
    called = [name if names.count(name) == 1 else str(host["node"]) for host, name in zip(hosts, names, strict=True)]
    about = [f"{name}, {address(host)}" for host, name in zip(hosts, names, strict=True)]
    return [(name, text) for name, text in zip(called, about, strict=True) if name.startswith(begun)]


def _find_locks(http: AdminHttp, begun: str) -> list[tuple[str, str]]:
    locks = http.get("/api/locks", prefix=begun or None, limit=SHOWN)["locks"]
    return [(str(lock["name"]), f"{len(lock['holders'])} of {lock['slots']} held") for lock in locks]


def _find_keys(http: AdminHttp, begun: str) -> list[tuple[str, str]]:
    entries = http.get("/api/state", prefix=begun or None, limit=SHOWN)["entries"]
    return [(str(entry["key"]), str(entry["type"])) for entry in entries]


def _find_settings(http: AdminHttp, begun: str) -> list[tuple[str, str]]:
    settings = http.get("/api/config")["settings"]
    return [(str(each["key"]), f"now {each['value']}") for each in settings if str(each["key"]).startswith(begun)]


def _find_services(http: AdminHttp, begun: str) -> list[tuple[str, str]]:
    found = http.get("/api/services")["services"]
    about = ((str(each["name"]), f"{each['ready']} of {each['target']}") for each in found)
    return [(name, text) for name, text in about if name.startswith(begun)]


def _find_schedules(http: AdminHttp, begun: str) -> list[tuple[str, str]]:
    found = http.get("/api/schedules")["schedules"]
    about = ((str(each["name"]), "paused" if each["paused"] else each["cron"] or "") for each in found)
    return [(name, text) for name, text in about if name.startswith(begun)]


jobs: Candidates = _jobs(None)
"""All jobs by id, the newest first; the beginning of a name stands for the newest job that is called so."""
live_jobs: Candidates = _jobs(LIVE)
"""Those that wait or run."""
hosts: Candidates = _candidates(_find_hosts)
"""Hosts by name, or by number where several share one."""
locks: Candidates = _candidates(_find_locks)
"""Locks that somebody holds."""
state_keys: Candidates = _candidates(_find_keys)
"""Keys of the shared state."""
services: Candidates = _candidates(_find_services)
"""Services by name."""
schedules: Candidates = _candidates(_find_schedules)
"""Schedules by name."""
settings: Candidates = _candidates(_find_settings)
"""Settings by name."""
