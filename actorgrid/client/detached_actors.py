"""Making actors that outlive their creator: as jobs that are begun again elsewhere when their host is lost."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from actorgrid.errors import BadRequest, NameTaken
from actorgrid.transports.user_actor_frames import ACTOR_HEX, FOLDER_HEX
from actorgrid.user_actor_context import JOB_PREFIX, ActorReference, serve_detached

from .actor_doors import actor_doors
from .actor_jobs import actor_jobs
from .actor_places import folder_name
from .own_user import own_user

if TYPE_CHECKING:
    from .actor_names import ActorName
    from .client import Client
    from .user_actors import ActorOptions

NAME_LABEL = "actorgrid/actor"
"""The label of its job: what is made of its name, or of its id."""
RESTARTS_MAX = 100


def make_detached(
    client: Client,
    made: type[Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: ActorOptions,
    methods: frozenset[str],
    name: ActorName | None,
) -> ActorReference:
    """Have the job accepted; what its handles hold. Raises UnpicklableFunction, NameTaken, what submitting raises."""
    if options.max_restarts > RESTARTS_MAX:
        raise BadRequest(
            f"a detached actor is begun again {RESTARTS_MAX} times at most, as jobs are",
            asked=f"max_restarts={options.max_restarts}",
        )
    job_id, actor_id = uuid4().hex, secrets.token_hex(ACTOR_HEX // 2)
    path = f"/{folder_name(secrets.token_hex(FOLDER_HEX // 2))}/{actor_id}"
    secret = secrets.token_hex(16)
    reference = ActorReference(actor_id, path, secret, made.__name__, methods, options.max_pending, JOB_PREFIX + job_id)
    label = actor_id if options.name is None else name_label(options.name)
    worker = options.worker.changed(
        retries=options.max_restarts, name=options.name or made.__name__, labels={NAME_LABEL: label}
    )
    call: tuple[Any, ...] = (reference, options.max_concurrency, made, args, dict(kwargs))
    # What not every version knows is there only where it was asked for.
    kept: dict[str, Any] = {}
    if options.checkpoints is not None:
        call, kept = (*call, tuple(options.checkpoints)), {"checkpoint": {}}
    request = {**client._jobs().request(serve_detached, call, {}, worker), "task_id": job_id, **kept}
    actor_jobs.remember(job_id, client)
    actor_doors.remember(actor_id, client._open_session())
    if name is not None:
        if named_job(client, str(options.name)) is not None:
            raise NameTaken(
                f"a detached actor of {own_user(client.http)} has the name {options.name!r}",
                asked=str(options.name),
                hint="client.actor(name) finds it, get_or_create() makes it if there is none",
            )
        name.say(reference)
    client.http.post("/api/jobs/batch", {"jobs": [request]}, repeat=True)
    if name is not None:
        name.hand_over()
    return reference


def named_job(client: Client, name: str) -> str | None:
    """The id of the job of the detached actor of that name, if there is one that has not ended."""
    label, live = f"{NAME_LABEL}={name_label(name)}", "queued,placed,running"
    jobs = client.http.get("/api/jobs", state=live, label=label, user=own_user(client.http), limit=1)["jobs"]
    return str(jobs[0]["job_id"]) if jobs else None


def name_label(name: str) -> str:
    """A name as the value of a label, which takes fewer characters."""
    return blake2b(name.encode(), digest_size=16).hexdigest()
