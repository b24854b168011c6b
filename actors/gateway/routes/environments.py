"""Python environments: specs, sent before the jobs that name them; those that are built on this host."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from actorgrid.access import Right
from actorgrid.actors.gateway.named_files import note_sent
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.work.python_environment_spec import environments_in, limits_of
from actorgrid.digests import is_digest
from actorgrid.errors import BadRequest, DiskFull, NotFound, WrongState
from actorgrid.models import AnswerBody, RequestBody
from actorgrid.python_environment import PATH_CHARS_MAX, REQUIREMENTS_BYTES_MAX, python_environment

ROUTES = RouteTable(Route)
ENVIRONMENTS = "environments"


class EnvironmentRequest(RequestBody):
    """A Python environment: which Python, which packages."""

    python: str = Field(
        default="",
        max_length=PATH_CHARS_MAX,
        description="a version (3.12), the absolute path of an interpreter on the hosts, or empty: the host's own",
    )
    requirements: str = Field(
        default="",
        max_length=REQUIREMENTS_BYTES_MAX,
        description="the text of a requirements file, which names no other",
    )


class EnvironmentKept(AnswerBody):
    """What jobs call it by; it stays for ten minutes at least, and for as long as a job names it."""

    digest: str


class EnvironmentRow(AnswerBody):
    """One environment of this host. *state*: ready, building, or left (its build failed, or was ended)."""

    digest: str
    state: str
    python: str
    packages: list[str]
    size_bytes: int
    used_at: float
    last_line: str


class EnvironmentsAnswer(AnswerBody):
    """Those of this host, used last first."""

    environments: list[EnvironmentRow]


@ROUTES.add(
    "POST",
    "/api/environments",
    EnvironmentKept,
    ENVIRONMENTS,
    Right.SUBMIT_JOBS,
    request=EnvironmentRequest,
    errors=(DiskFull,),
)
async def post_environment(call: RequestContext) -> Any:
    """Keep what an environment is made of, for jobs that name it. It is built where, and when, one of them runs."""
    request = call.body_as(EnvironmentRequest)
    spec = python_environment(request.python, request.requirements)
    data, store = spec.to_bytes(), call.app.blobs

    def keep() -> None:
        store.check_room(len(data), call.app.settings.performance.min_free_bytes)
        store.put_all([data])
        note_sent(call, spec.digest)

    await call.app.in_pool(keep)
    return {"digest": spec.digest}


@ROUTES.add("GET", "/api/environments", EnvironmentsAnswer, ENVIRONMENTS, Right.LIST_ENVIRONMENTS)
async def get_environments(call: RequestContext) -> Any:
    """The environments that are built, or being built, on this host."""
    kept = environments_in(limits_of(call.app.host.paths, call.app.settings))
    found = await call.app.in_pool(kept.facts)
    return {"environments": [each._asdict() for each in found]}


@ROUTES.add(
    "DELETE",
    "/api/environments/{digest}",
    EnvironmentKept,
    ENVIRONMENTS,
    Right.REMOVE_ENVIRONMENTS,
    errors=(NotFound, WrongState, BadRequest),
)
async def delete_environment(call: RequestContext) -> Any:
    """Remove an environment of this host that no work uses; who asks for it again has it built again."""
    digest = call.part("digest")
    if not is_digest(digest):
        raise BadRequest("that is not the digest of an environment", asked=digest[:80], hint="actorgrid environments")
    kept = environments_in(limits_of(call.app.host.paths, call.app.settings))

    def clear() -> bool:
        return kept.clear(digest) or not kept.path(digest).exists()

    if digest not in {each.digest for each in await call.app.in_pool(kept.facts)}:
        raise NotFound("there is no such environment on this host", asked=digest, hint="actorgrid environments")
    if not await call.app.in_pool(clear):
        raise WrongState("the environment is in use", asked=digest, hint="it goes by itself when room is wanted")
    return {"digest": digest}
