"""Archives of working directories, sent before the jobs that name them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from actorgrid.access import Right
from actorgrid.actors.gateway.named_files import has_or_keep
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.errors import BodyTooLarge, DiskFull
from actorgrid.models import AnswerBody, RequestBody
from actorgrid.working_dir import ARCHIVE_BYTES_MAX

ROUTES = RouteTable(Route)


class WorkingDirRequest(RequestBody):
    """An archive, or the question whether it is here."""

    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the archive")
    archive: bytes | None = Field(default=None, description="a ZIP file (base64 in JSON); without it: is it here?")


class WorkingDirAnswer(AnswerBody):
    """Whether the archive is here, sent by a user of the tenant.

    If so, it stays for ten minutes at least, and for as long as a job names it.
    """

    digest: str
    here: bool


@ROUTES.add(
    "POST",
    "/api/working-dirs",
    WorkingDirAnswer,
    "jobs",
    Right.SUBMIT_JOBS,
    request=WorkingDirRequest,
    errors=(DiskFull, BodyTooLarge),
)
async def post_working_dir(call: RequestContext) -> Any:
    """Keep the archive of a working directory, for jobs that name it. It is not looked into here."""
    request = call.body_as(WorkingDirRequest)
    digest, archive = request.digest, request.archive
    if archive is not None and len(archive) > ARCHIVE_BYTES_MAX:
        raise BodyTooLarge(
            "the archive of the working directory is too large",
            asked=f"{len(archive)} bytes",
            found=f"at most {ARCHIVE_BYTES_MAX}",
            hint="leave out what the hosts have, or do not need",
        )
    return {"digest": digest, "here": await has_or_keep(call, digest, archive)}
