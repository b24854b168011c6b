"""Services, as a client writes them and looks at them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from actorgrid.errors import CallTimeout, WrongState

from .http import AdminHttp, segment

if TYPE_CHECKING:
    from .client import Client

LOOK_S = 0.25


class ServiceHandle:
    """A service of the cluster, by its name. Every method raises UnknownService where it is no more."""

    def __init__(self, http: AdminHttp, name: str) -> None:
        self._http = http
        self.name = name

    def __repr__(self) -> str:
        return f"ServiceHandle({self.name!r})"

    @property
    def path(self) -> str:
        """Where the door has it."""
        return f"/api/services/{segment(self.name)}"

    def look(self) -> dict[str, Any]:
        """What it is now: ``state``, ``ready``, ``target``, ``replicas``, ``revision``, ``rollout`` and more."""
        seen: dict[str, Any] = self._http.get(self.path)
        return seen

    def why(self) -> dict[str, Any]:
        """Why it is so: ``headline``, ``notes``, ``next_steps``."""
        told: dict[str, Any] = self._http.get(f"{self.path}/why")
        return told

    def wait_ready(self, timeout_s: float = 600.0) -> dict[str, Any]:
        """What it is once as many replicas answer as there are to be, and no exchange goes on.

        Raises CallTimeout after *timeout_s*, WrongState where its replicas end by themselves.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.look()
            if seen["state"] in ("ready", "idle"):
                return seen
            if seen["state"] == "failing":
                raise WrongState(
                    f"service {self.name} does not come to serve",
                    asked="that it is ready",
                    found=seen["problem"],
                    hint=f"actorgrid why {self.name}",
                )
            if time.monotonic() >= deadline:
                raise CallTimeout(
                    f"service {self.name} is not ready in {timeout_s:g} s",
                    found=f"{seen['ready']} of {seen['target']} replicas answer; {seen['problem']}",
                    hint=f"actorgrid why {self.name}",
                )
            time.sleep(min(LOOK_S, max(0.0, deadline - time.monotonic())))

    def scale(self, least: int, most: int | None = None) -> dict[str, Any]:
        """Have so many replicas; with *most*, between the two by what is asked."""
        body = {"replicas_min": least, "replicas_max": least if most is None else most}
        seen: dict[str, Any] = self._http.post(f"{self.path}/scale", body, repeat=True)
        return seen

    def rollback(self) -> dict[str, Any]:
        """Give up the exchange that goes on, or else go back to what served before. Raises WrongState."""
        seen: dict[str, Any] = self._http.post(f"{self.path}/rollback")
        return seen

    def remove(self, *, now: bool = False) -> None:
        """Take it away: its replicas get no more requests, and end once they have finished those that they have (*now*:
        at once). Its name is free then."""
        self._http.delete(self.path + ("?now=true" if now else ""), patient=False)


def adapter_fields(adapters: Sequence[str] | Mapping[str, str]) -> list[dict[str, str]]:
    """Adapters as a request names them: by a mapping from what clients write to what replicas know, or by one name."""
    if isinstance(adapters, Mapping):
        return [{"model": model, "served_as": served_as} for model, served_as in adapters.items()]
    return [{"model": model} for model in adapters]


class ServiceCalls:
    """A part of :class:`~.client.Client`."""

    def serve(
        self,
        name: str,
        command: Sequence[str] | type = (),
        /,
        *,
        replicas: int | tuple[int, int] = 1,
        preset: str = "",
        model: str = "",
        protocol: str | None = None,
        ready_path: str | None = None,
        ready_body: str | None = None,
        live_path: str | None = None,
        start_timeout_s: float | None = None,
        concurrency: int | None = None,
        idle_s: float | None = None,
        drain_s: float | None = None,
        strategy: str | None = None,
        route: str | None = None,
        affinity_header: str | None = None,
        adapters: Sequence[str] | Mapping[str, str] | None = None,
        fallbacks: Sequence[str] | None = None,
        replace: bool = False,
        canary: int = 0,
        canary_s: float = 300.0,
        **options: Any,
    ) -> ServiceHandle:
        """Keep replicas of a server running: *command*, which listens at ``{port}``, a *preset* of *model*, or a class.

        *replicas*: so many, or ``(least, most)`` by what is asked. Further options as for a durable ``submit``: what
        each replica gets. With *replace*, a service of that name is exchanged for this, *canary* percent of its
        requests first for *canary_s*; without, it raises WrongState where it runs something else.

        *route*: how gateways choose a replica (docs/model_gateway.md). *adapters*: LoRA adapters that the replicas have
        loaded, as models of their own; a mapping says how replicas call each. *fallbacks*: the models that answer where
        this one has no replica that does.
        """
        from actorgrid.service_presets import preset_command
        from actorgrid.serving.class_command import HEALTH, class_command, class_protocol

        from .job_bodies import job_body

        client = cast("Client", self)
        if isinstance(command, type):
            words = class_command(command)
            protocol = protocol or class_protocol(command)
            live_path = HEALTH if live_path is None else live_path
            if protocol == "http" and ready_path is None:
                ready_path = HEALTH
        else:
            words = list(command)
        if preset:
            gang = int(options.get("gang") or 1)
            words = preset_command(preset, model, float(options.get("gpus") or 0), words, gang)
        least, most = (replicas, replicas) if isinstance(replicas, int) else replicas
        body: dict[str, Any] = {"protocol": protocol or "openai", "preset": preset, "model": model}
        body |= {
            "replicas_min": least,
            "replicas_max": most,
            "replace": replace,
            "canary": canary,
            "canary_s": canary_s,
        }
        more = {
            "ready_path": ready_path,
            "ready_body": ready_body,
            "live_path": live_path,
            "start_timeout_s": start_timeout_s,
            "concurrency": concurrency,
            "idle_s": idle_s,
            "drain_s": drain_s,
            "strategy": strategy,
            "route": route,
            "affinity_header": affinity_header,
            "adapters": None if adapters is None else adapter_fields(adapters),
            "fallbacks": None if fallbacks is None else list(fallbacks),
        }
        body |= {field: value for field, value in more.items() if value is not None}
        body["job"] = job_body(client.http, words, (), {}, options, client._working_dir, client._environment)
        handle = ServiceHandle(client.http, name)
        client.http.put(handle.path, body)
        return handle

    def services(self) -> list[dict[str, Any]]:
        """All services, by name, as ``ServiceHandle.look()`` gives each."""
        found: list[dict[str, Any]] = cast("Client", self).http.get("/api/services")["services"]
        return found

    def find_service(self, name: str, /) -> ServiceHandle:
        """The service of that name. Raises UnknownService."""
        handle = ServiceHandle(cast("Client", self).http, name)
        handle.look()
        return handle
