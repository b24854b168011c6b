"""Results of many function jobs in one answer: to ask for each by itself costs more than most of them take."""

from __future__ import annotations

from typing import Any

from actorgrid.access import Right
from actorgrid.actors.cluster.messages import FindResults, ResultPlace
from actorgrid.actors.gateway.schemas.jobs import ResultsAnswer, ResultsRequest
from actorgrid.actors.gateway.server.rights import check_owner, unknown_job
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.links.pieces import read_result_piece
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.errors import NotARegularFile, ResultGone

ROUTES = RouteTable(Route)
ANSWER_S = 10.0
RESULT_BYTES_MAX = 32 * 1024
"""A larger one is asked for by itself: 64 of them are 2 MiB."""


@ROUTES.add("POST", "/api/jobs/results", ResultsAnswer, "jobs", Right.READ_OUTPUT, request=ResultsRequest)
async def post_results(call: RequestContext) -> Any:
    """The result files of up to 64 function jobs, as far as they are small and on this host; ask for others one by one.

    As the workers wrote them; they are never unpickled here.
    """
    names = tuple(dict.fromkeys(call.body_as(ResultsRequest).job_ids))
    places: dict[str, ResultPlace] = await call.ask("cluster_manager", FindResults(names, seen=call.seen), ANSWER_S)
    for name, place in places.items():
        check_owner(call, place.user_id, unknown_job(name))
    folder, here = call.app.host.paths.attempts_dir, call.app.host.host_id
    wanted = {name: AttemptDir(folder, place.attempt_id) for name, place in places.items() if place.host == here}

    def read() -> dict[str, bytes]:
        return {name: data for name, attempt in wanted.items() if (data := _small_result(attempt)) is not None}

    found = await call.app.in_file_pool(read) if wanted else {}
    return {"results": [{"job_id": name, "result": found.get(name)} for name in names]}


def _small_result(attempt: AttemptDir) -> bytes | None:
    try:
        piece = read_result_piece(attempt, 0, RESULT_BYTES_MAX)
    except (OSError, NotARegularFile, ResultGone):
        return None  # whoever asks for it by itself is told why
    return piece.data if piece is not None and piece.size == len(piece.data) else None
