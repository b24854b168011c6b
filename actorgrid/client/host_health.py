"""The client's questions about hosts in trouble, and maintenance windows."""

from __future__ import annotations

from typing import Any

from .http import AdminHttp, segment


class HostHealthClient:
    """What a client may ask and set of hosts in trouble; part of :class:`Client`."""

    http: AdminHttp

    def why_host(self, host_id: str) -> dict[str, Any]:
        """Why a host is as it is, and what would be done about it: ``{"condition", "checks", "next", "try", ...}``."""
        answer: dict[str, Any] = self.http.get(f"/api/hosts/{segment(host_id)}/why")
        return answer

    def faults(self, host_id: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """What happened to hosts and was done about them, newest first: ``{"at", "host_id", "kind", "what", ...}``."""
        faults: list[dict[str, Any]] = self.http.get("/api/faults", host_id=host_id, limit=limit)["faults"]
        return faults

    def maintenance(self) -> list[dict[str, Any]]:
        """The hosts under maintenance now: ``{"host_id", "hostname", "begun_at", "until", "reason", "by"}``."""
        windows: list[dict[str, Any]] = self.http.get("/api/maintenance")["maintenance"]
        return windows

    def start_maintenance(self, host_id: str, for_s: float, reason: str = "") -> dict[str, Any]:
        """Have nothing done about a host for *for_s* seconds, at most 30 days. Raises NotFound."""
        path = f"/api/hosts/{segment(host_id)}/maintenance"
        answer: dict[str, Any] = self.http.put(path, {"for_s": for_s, "reason": reason})
        return answer

    def end_maintenance(self, host_id: str) -> dict[str, Any]:
        """End it now; ``{"was"}`` says whether there was any. Raises NotFound."""
        answer: dict[str, Any] = self.http.delete(f"/api/hosts/{segment(host_id)}/maintenance", patient=False)
        return answer
