"""What describes a graph, read for whoever asks at a door: its steps by number, from the files that it names."""

from __future__ import annotations

from collections import OrderedDict

from actorgrid.actors.files.untrusted_files import read_whole
from actorgrid.actors.jobs.graph_spec import SPEC_BYTES_MAX, GraphSpec, read_spec, spec_files
from actorgrid.actors.ledger.graph_records import GraphFacts
from actorgrid.actors.links.messages import FetchBlobs
from actorgrid.errors import ActorGridError, NotARegularFile, ResultGone

from .server.route import RequestContext

KEPT = 8
"""Graphs whose description stays in memory: people look at the same one again and again."""
FETCH_S = 60.0


class GraphFiles:
    """The descriptions of graphs, read once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], GraphSpec] = OrderedDict()

    async def spec(self, call: RequestContext, facts: GraphFacts) -> GraphSpec:
        """The graph with all its steps. Raises ResultGone when its files are nowhere any more, InvalidGraph."""
        digests = spec_files(facts)
        found = self._kept.get(digests)
        if found is None:
            contents = [await self._content(call, digest) for digest in digests]
            found = await call.app.in_pool(lambda: read_spec(contents))
            self._kept[digests] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(digests)
        return found

    async def _content(self, call: RequestContext, digest: str) -> bytes:
        folder = call.app.host.paths.blobs_dir
        if not (folder / digest).exists() and call.app.host.enrolment is not None:
            try:
                await call.ask("links", FetchBlobs((digest,)), FETCH_S)
            except ActorGridError as error:
                raise _gone(digest, error.message) from error

        def read() -> bytes:
            try:
                data = read_whole(folder, digest, SPEC_BYTES_MAX)
            except (OSError, NotARegularFile) as error:
                raise _gone(digest, str(error)) from error
            if data is None:
                raise _gone(digest, "it is too large")
            return data

        return await call.app.in_pool(read)


def _gone(digest: str, why: str) -> ResultGone:
    return ResultGone(
        "what describes the graph is not kept any more",
        asked=digest,
        found=why,
        hint="the files of a graph are kept while it runs, and for the last 100 that have ended",
    )
