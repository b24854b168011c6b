"""What the cluster looks like, its settings and quotas: the client's questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from actorgrid.errors import ActorGridError

from .host_health import HostHealthClient
from .http import segment

GLANCE_S = 1.0
"""How long a notebook's card waits for the host."""


class ClusterViewClient(HostHealthClient):
    """What a client may ask and set of the cluster as a whole; part of :class:`Client`."""

    def _repr_html_(self) -> str:
        """What a notebook shows: the cluster as it is now, or that it does not answer within a second."""
        from .html_cards import card

        if self.http.closed:
            return card("Client", [("host", self.http.url)], "closed", "over")
        try:
            seen = self.http.get("/api/cluster", timeout_s=GLANCE_S)
        except ActorGridError as error:
            return card("Client", [("host", self.http.url), ("found", error.message)], "out of reach", "bad")
        used, all_of_it = seen["gpu_allocated_milli"] / 1000, seen["gpu_capacity_milli"] / 1000
        live = [f"{seen['jobs'][state]} {state}" for state in ("queued", "running") if seen["jobs"].get(state)]
        rows = [
            ("host", self.http.url),
            ("hosts", seen["hosts"]),
            ("GPUs in use", f"{used:g} of {all_of_it:g}" if all_of_it else ""),
            ("jobs", ", ".join(live)),
            ("problems", "; ".join(seen["problems"])),
        ]
        return card("Client", rows, *(("ready", "good") if seen["ready"] else ("not ready", "bad")))

    def cluster(self) -> dict[str, Any]:
        """Counts and figures of the whole."""
        answer: dict[str, Any] = self.http.get("/api/cluster")
        return answer

    def hosts(self) -> list[dict[str, Any]]:
        """Hosts; fields of models.ClusterNode."""
        hosts: list[dict[str, Any]] = self.http.get("/api/hosts")["hosts"]
        return hosts

    def gpus(self) -> list[dict[str, Any]]:
        """Devices and their latest readings; fields of models.GPUDevice."""
        gpus: list[dict[str, Any]] = self.http.get("/api/gpus")["gpus"]
        return gpus

    def allocations(self) -> list[dict[str, Any]]:
        """What attempts and leases hold."""
        allocations: list[dict[str, Any]] = self.http.get("/api/allocations")["allocations"]
        return allocations

    def objects(self, limit: int = 100) -> list[dict[str, Any]]:
        """What lies in the object stores, by host and session, with each host's *limit* largest values."""
        hosts: list[dict[str, Any]] = self.http.get("/api/objects", limit=limit)["hosts"]
        return hosts

    def usage(self, by: str = "user", *, since_s: float | None = None, user: str = "") -> dict[str, Any]:
        """What work has held and used: rows by *by* (user, tenant, job, gpu, model, host, kind, label, label:KEY).

        Of the last *since_s* seconds, or since the beginning; of one *user*, or of all. Raises BadRequest.
        """
        answer: dict[str, Any] = self.http.get("/api/usage", by=by, since_s=since_s, user=user or None, timeout_s=30.0)
        return answer

    def model_usage(self, by: str = "model", *, since_s: float | None = None, user: str = "") -> dict[str, Any]:
        """What served models used: rows by *by* (key, user, tenant, service, model, host), in requests and tokens.

        Of the last *since_s* seconds by whole hours, or since the beginning; of one *user*, or of all that may be seen.
        Raises BadRequest.
        """
        answer: dict[str, Any] = self.http.get(
            "/api/usage/models", by=by, since_s=since_s, user=user or None, timeout_s=30.0
        )
        return answer

    def leases(self) -> list[dict[str, Any]]:
        """Workers that sessions hold, of all clients: ``{"lease_id", "session_id", "user_id", "host", ...}``."""
        leases: list[dict[str, Any]] = self.http.get("/api/leases")["leases"]
        return leases

    def cancel_lease(self, lease_id: str) -> None:
        """End a session's lease: its task is killed and not tried again. Raises UnknownAllocation, HostUnreachable."""
        self.http.post(f"/api/leases/{segment(lease_id)}/cancel", timeout_s=70.0)

    def decisions(self, limit: int = 100) -> list[dict[str, Any]]:
        """The latest placements, newest first; fields of models.SchedulingDecision."""
        decisions: list[dict[str, Any]] = self.http.get("/api/decisions", limit=limit)["decisions"]
        return decisions

    def performance(self) -> dict[str, Any]:
        """The host's own figures; fields of models.PerformanceMetrics."""
        answer: dict[str, Any] = self.http.get("/api/performance")
        return answer

    def inspect(self) -> dict[str, Any]:
        """The supervision tree (``tree``), and how each of the host's processes says it is (``servers``)."""
        answer: dict[str, Any] = self.http.get("/api/inspect")
        return answer

    def config(self) -> list[dict[str, Any]]:
        """Settings: ``{"key", "value", "default", "origin", "live", "description"}``."""
        settings: list[dict[str, Any]] = self.http.get("/api/config")["settings"]
        return settings

    def set_config(self, key: str, value: Any) -> dict[str, Any]:
        """Change a live setting: ``{"key", "value", "previous"}``.

        Raises UnknownSetting, InvalidSetting, SettingNotLive.
        """
        answer: dict[str, Any] = self.http.put(f"/api/config/{segment(key)}", {"value": value})
        return answer

    def quotas(self) -> list[dict[str, Any]]:
        """Who may hold what, and holds: ``{"user", "limits", "default", "used"}``; ``limits`` null: not limited."""
        quotas: list[dict[str, Any]] = self.http.get("/api/quotas")["quotas"]
        return quotas

    def set_quota(
        self,
        user: str,
        *,
        gpus: float | None = None,
        gpu_memory: int | str | None = None,
        cpus: float | None = None,
        memory: int | str | None = None,
        jobs_waiting: int | None = None,
    ) -> dict[str, Any]:
        """Hold *user* (``*``: everyone without a quota of one's own) to this at once; ``None`` is no limit.

        The quota as a whole is replaced: ``{"user", "limits", "previous"}``. Nothing that runs is stopped.
        """
        limits = {
            "gpus": gpus,
            "gpu_memory": gpu_memory,
            "cpus": cpus,
            "memory": memory,
            "jobs_waiting": jobs_waiting,
        }
        answer: dict[str, Any] = self.http.put(f"/api/quotas/{segment(user)}", limits)
        return answer

    def remove_quota(self, user: str) -> dict[str, Any]:
        """Take the user's own quota away: ``{"user", "limits", "previous"}``. Raises NotFound when there is none."""
        answer: dict[str, Any] = self.http.delete(f"/api/quotas/{segment(user)}", patient=False)
        return answer

    def tenants(self) -> list[dict[str, Any]]:
        """Tenants by name: what each is given, holds, held of late and has waiting, and its ``share``."""
        tenants: list[dict[str, Any]] = self.http.get("/api/tenants")["tenants"]
        return tenants

    def tenant(self, name: str) -> dict[str, Any]:
        """One tenant, as ``tenants`` has it. Raises NotFound."""
        found: dict[str, Any] = self.http.get(f"/api/tenants/{segment(name)}")
        return found

    def create_tenant(
        self,
        name: str,
        *,
        weight: float = 1.0,
        guarantee: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Create a tenant: from the first on, jobs of several are ordered by their shares.

        *guarantee* and *limits* may have ``gpus``, ``gpus_by_model`` ({model: count}), ``gpu_memory``, ``cpus`` and
        ``memory``, limits ``jobs_waiting`` and ``waiting_bytes`` too. Raises WrongState for one that there is.
        """
        body = {"name": name, "weight": weight, "guarantee": guarantee, "limits": limits}
        made: dict[str, Any] = self.http.post("/api/tenants", body)
        return made

    def set_tenant(
        self,
        name: str,
        *,
        weight: float | None = None,
        guarantee: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Give a tenant other terms; ``None`` leaves them, a guarantee or limits replace all. Raises NotFound."""
        body = {"weight": weight, "guarantee": guarantee, "limits": limits}
        now: dict[str, Any] = self.http.put(f"/api/tenants/{segment(name)}", body)
        return now

    def remove_tenant(self, name: str) -> dict[str, Any]:
        """Remove a tenant: its keys open nothing, nothing of it starts any more, and what it runs is ended.

        ``{"tenant", "cancelled", "sessions", "more"}``: call it again while there is ``more``. Raises NotFound.
        """
        answer: dict[str, Any] = self.http.delete(f"/api/tenants/{segment(name)}", patient=False)
        return answer

    def locks(self, prefix: str = "") -> list[dict[str, Any]]:
        """Locks that somebody holds: ``{"name", "slots", "holders", "waiters"}``, by name; at most 1,000."""
        locks: list[dict[str, Any]] = self.http.get("/api/locks", prefix=prefix or None)["locks"]
        return locks

    def events(self, start: int | None = None) -> Iterator[Any]:
        """What the ledger applies, from index *start* or from now on. Raises HostUnreachable when it breaks off."""
        for event in self.http.events("/api/events", **{"from": start}):
            if event.event == "end":
                return
            yield json.loads(event.data)
