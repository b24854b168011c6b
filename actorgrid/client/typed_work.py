"""Work by the name of its type, with arguments that are checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from actorgrid.errors import BadRequest

if TYPE_CHECKING:
    from .client import Client
    from .http import AdminHttp


class TypedWork:
    """Work that was accepted: a job."""

    def __init__(self, client: Client, job_id: str, kind: str) -> None:
        self._client = client
        self.job_id = job_id
        self.kind = kind

    def __repr__(self) -> str:
        return f"TypedWork({self.job_id!r}, {self.kind!r})"

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """The job once it is final. Raises TimeoutError after *timeout* seconds."""
        return self._client.wait(self.job_id, timeout)

    def result(self, timeout: float | None = None) -> Any:
        """What it gave: the value of a function; of a command its output, as bytes. Raises what it failed with."""
        job = self.wait(timeout)
        if job["kind"] == "function":
            return self._client.result(self.job_id)
        if job["state"] != "succeeded":
            from .durable import failure_of

            raise failure_of(job)
        return b"".join(self._client.logs(self.job_id))


class WorkCalls:
    """A part of :class:`~.client.Client`."""

    def submit_work(self, kind: str, arguments: Mapping[str, Any] | None = None, /, **options: Any) -> TypedWork:
        """Submit work of a type, as ``actorgrid work types`` lists them, with its *arguments*, checked by its schema.

        Options are those of a durable submit, and stand above what the type says. Raises InvalidWork, which names the
        path of what is wrong.
        """
        client = cast("Client", self)
        body = typed_work_body(client.http, kind, arguments or {}, options, client._working_dir, client._environment)
        accepted = client.http.post("/api/jobs", body, repeat=True)
        return TypedWork(client, accepted["job_id"], kind)


def typed_work_body(
    http: AdminHttp, kind: str, arguments: Mapping[str, Any], options: Mapping[str, Any], *place: Any
) -> dict[str, Any]:
    """The job that work of that type comes to, as a request. *place*: its working directory and Python environment.

    Raises InvalidWork, BadRequest.
    """
    from actorgrid.work_types.registry import find_work_type

    from .job_bodies import job_body

    found = find_work_type(kind)
    if not isinstance(arguments, Mapping):
        raise BadRequest("arguments are a map", asked=repr(arguments)[:80], hint='as in {"command": ["true"]}')
    plan = found.plan(found.checked(arguments))
    asked = {"name": kind, **plan.options, **options}
    if plan.cwd is not None:
        asked["cwd"] = plan.cwd
    return job_body(http, plan.function or list(plan.command), plan.arguments, plan.keywords, asked, *place)
