"""The shared state: read, mutate, watch; and the events of the ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from aiohttp import web

from actorgrid.access import Right
from actorgrid.actors.gateway.schemas.answers import EventsQuery
from actorgrid.actors.gateway.schemas.shared_state import (
    StateAnswer,
    StateQuery,
    StateUsageAnswer,
    UsageQuery,
    WatchQuery,
)
from actorgrid.actors.gateway.server.codec import encode_json
from actorgrid.actors.gateway.server.hub import Item
from actorgrid.actors.gateway.server.rights import changes_in_reach
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gateway.server.state_stream import FIRST, StateStream
from actorgrid.actors.gateway.server.stream import EventSink, ServerSentEvents, send_events
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.query_answers import EventsPage, HistoryEvent
from actorgrid.actors.replication.messages import (
    ChangesPage,
    Mutate,
    MutateBatch,
    Read,
    ReadChanges,
    ReadPrefix,
    ReadUsage,
)
from actorgrid.actors.replication.namespaces import (
    CLUSTER,
    SIGN,
    check_read,
    check_write,
    kept_key,
    may_see,
    plain_key,
    shared_with,
)
from actorgrid.errors import (
    BadRequest,
    DiskFull,
    NamespaceFull,
    NotReplicated,
    StateCompareFailed,
    StateTypeConflict,
    UnknownKey,
)
from actorgrid.sizes import STATE_KEY_MAX
from actorgrid.state_models import StateBatchRequest, StateChange, StateEntry, StateMutation

ROUTES = RouteTable(Route)

MAX_KEY = STATE_KEY_MAX
USERS_KEPT = 10_000
"""Jobs whose users a stream for work remembers."""
HISTORY_PAGE = 500
CHANGES_PAGE = 500
"""Changes of the shared state that are read at once for a stream."""
LAST_KEY = "\U0010ffff"
"""No key is behind it."""
HEALTH = "health/"
"""Where hosts told their health before there was the namespace ``_cluster``: readers may go on asking there."""
WRITE_ERRORS = (StateTypeConflict, StateCompareFailed, NamespaceFull, DiskFull, NotReplicated)


@ROUTES.add("GET", "/api/state", StateAnswer, "state", Right.READ_STATE, query=StateQuery)
async def get_state(call: RequestContext) -> Any:
    """Entries of the shared state, by key.

    Those under a prefix.
    """
    query = call.query_as(StateQuery)
    prefix, behind = kept_key(query.prefix, call.scope), kept_key(query.behind, call.scope)
    asked = ReadPrefix(prefix, query.limit, call.scope, _shared(call), behind)
    entries = await call.ask("distributed_state", asked)
    return {"entries": [_shown(call, entry, query.prefix) for entry in entries]}


def _key(call: RequestContext, key: str) -> str:
    if len(key) > MAX_KEY or "\0" in key:
        raise BadRequest("not a key", asked=key[:100], hint=f"at most {MAX_KEY} characters, no NUL")
    kept = kept_key(key, call.scope)
    if len(kept) > MAX_KEY:
        raise BadRequest(
            "the key and the name of its tenant's namespace are too long", asked=key[:100], found=f"{MAX_KEY} at most"
        )
    check_read(kept, call.scope, _shared(call))
    return kept


def _shared(call: RequestContext) -> tuple[str, ...]:
    """The namespaces beside their own that those in the request's scope have."""
    names = call.app.settings.state.shared_namespaces.split(",")
    set_so = tuple(name.strip() for name in names if name.strip())
    return shared_with(call.scope, set_so, call.who.scope(Right.LIST_HOSTS) is not None)


def _shown(call: RequestContext, entry: Any, asked: str) -> Any:
    """An entry with its key as whoever asked for *asked*, a key or a prefix, writes it."""
    key = entry["key"] if asked.startswith(SIGN) else plain_key(entry["key"], call.scope)
    return entry if key == entry["key"] else {**entry, "key": key}


@ROUTES.add("GET", "/api/state-watch", "text/event-stream", "state", Right.READ_STATE, query=WatchQuery)
async def watch_state(call: RequestContext) -> Any:
    """Changes of the shared state under a prefix, as server-sent events; resumes behind Last-Event-ID."""
    query = call.query_as(WatchQuery)
    resumed = call.http.headers.get("Last-Event-ID", "")
    return await stream_state(call, ServerSentEvents(call.http), query, resumed, bool(resumed))


async def stream_state(
    call: RequestContext, sink: EventSink, query: WatchQuery, resumed: str, marks: bool
) -> web.StreamResponse:
    """Send changes of the shared state behind the id *resumed*, if there is one, until the client or the host ends.

    *marks*: as of ``StateStream``.
    """
    app = call.app
    shared, prefix = _shared(call), kept_key(query.prefix, call.scope)

    async def read(after: str, behind: str) -> ChangesPage:
        asked = ReadChanges(prefix, after, behind, CHANGES_PAGE, call.scope, shared)
        page: ChangesPage = await call.ask("distributed_state", asked, 10.0)
        return page

    def shown(key: str) -> str:
        return key if query.prefix.startswith(SIGN) else plain_key(key, call.scope)

    after = "" if resumed == FIRST else resumed
    if not after and not query.initial:
        # Before it is listened: what changes from here on is behind this position, and comes in any case.
        after = (await read("", LAST_KEY))["upto"]
    with app.hub.listen_to_state(prefix) as listener:
        await app.bridge.run(partial(app.watch_prefix, prefix), 10.0)
        try:
            stream = StateStream(call.http, sink, read, lambda key: may_see(key, call.scope, shared), shown, marks)
            return await stream.send(listener, after)
        finally:
            app.bridge.post(partial(app.unwatch_prefix, prefix))


@ROUTES.add("GET", "/api/state-usage", StateUsageAnswer, "state", Right.MEASURE_STATE, query=UsageQuery)
async def get_state_usage(call: RequestContext) -> Any:
    """Sizes of the shared state by namespace and prefix, and its traffic by host, as this host sees it."""
    query = call.query_as(UsageQuery)
    return await call.ask("distributed_state", ReadUsage(query.prefix, query.depth, query.rows))


@ROUTES.add(
    "POST",
    "/api/state-batch",
    StateAnswer,
    "state",
    Right.WRITE_STATE,
    request=StateBatchRequest,
    errors=(*WRITE_ERRORS, UnknownKey),
)
async def post_state_batch(call: RequestContext) -> Any:
    """Apply several mutators, all or none, in one commit of this host."""
    batch = call.body_as(StateBatchRequest)
    mutations = tuple(_mutate(call, change.key, change) for change in batch.mutations)
    asked = MutateBatch(mutations, batch.durability, batch.within_s)
    entries = await call.ask("distributed_state", asked, 10.0 + batch.within_s)
    return {
        "entries": [_shown(call, entry, change.key) for entry, change in zip(entries, batch.mutations, strict=True)]
    }


@ROUTES.add("GET", "/api/state/{key:.+}", StateEntry, "state", Right.READ_STATE, errors=(UnknownKey,))
async def get_key(call: RequestContext) -> Any:
    """One entry."""
    asked = call.part("key")
    key = _key(call, asked)
    if asked.startswith(HEALTH) and CLUSTER in _shared(call):
        try:
            return {**await call.ask("distributed_state", Read(f"{CLUSTER}/{asked}")), "key": asked}
        except UnknownKey:
            pass  # a host of the version before tells it under the old name
    return _shown(call, await call.ask("distributed_state", Read(key)), asked)


@ROUTES.add(
    "POST",
    "/api/state/{key:.+}",
    StateEntry,
    "state",
    Right.WRITE_STATE,
    request=StateMutation,
    errors=(*WRITE_ERRORS, UnknownKey),
)
async def post_key(call: RequestContext) -> Any:
    """Apply one mutator to one key."""
    change = call.body_as(StateMutation)
    request = _mutate(call, call.part("key"), change)
    request = replace(request, durability=change.durability, within_s=change.within_s)
    return _shown(call, await call.ask("distributed_state", request, 10.0 + change.within_s), call.part("key"))


def _mutate(call: RequestContext, key: str, change: StateChange) -> Mutate:
    check_write(key)
    key = _key(call, key)
    return Mutate(
        key,
        change.type,
        change.operation,
        change.value,
        change.field,
        ttl_s=change.ttl_s,
        expected=change.expects,
    )


@ROUTES.add("GET", "/api/events", "text/event-stream", "events", Right.LIST_JOBS, query=EventsQuery)
async def get_events(call: RequestContext) -> Any:
    """What the ledger applied, as server-sent events; resumes at from= or after Last-Event-ID."""
    first = call.query_as(EventsQuery).from_
    resumed = call.http.headers.get("Last-Event-ID", "")
    if resumed:
        if not resumed.isdigit() or len(resumed) > 19:
            raise BadRequest("Last-Event-ID is not one of ours", asked=resumed[:40], hint="send the id as it was given")
        first = int(resumed) + 1
    return await stream_events(call, ServerSentEvents(call.http), first)


async def stream_events(call: RequestContext, sink: EventSink, first: int | None) -> web.StreamResponse:
    """Send what the ledger applied, from the index *first* on or from now on, until the client or the host ends."""

    async def since(index: int) -> AsyncIterator[Item]:
        recent = call.app.hub.recent(index)
        if recent is not None:
            for item in recent:
                yield item
            return
        while True:
            answer: EventsPage = await call.ask(
                "consensus", Query("events", {"from": index, "limit": HISTORY_PAGE}), 10.0
            )
            page = answer["events"]
            for event in grouped(page):
                yield Item(event["index"], encode_json(event))
            if len(page) < HISTORY_PAGE:
                return
            index = page[-1]["index"] + 1

    with call.app.hub.listen_to_events() as listener:
        start = _nothing() if first is None else since(first)
        if call.scope.is_all:
            return await send_events(call.http, sink, listener, start, lambda last: since(last + 1))
        users: dict[str, str | None] = {}

        async def own(item: Item) -> Item | None:
            # What was decided of it once is decided for good: a job stays its user's.
            if len(users) > USERS_KEPT:
                users.clear()
            kept = await changes_in_reach(call, json.loads(item.data), users)
            return None if kept is None else Item(item.index, encode_json(kept))

        return await send_events(call.http, sink, listener, start, lambda last: since(last + 1), own=own)


async def _nothing() -> AsyncIterator[Item]:
    empty: tuple[Item, ...] = ()
    for item in empty:
        yield item


def grouped(rows: list[HistoryEvent]) -> Iterator[dict[str, Any]]:
    """Rows of the ledger's history, one event per entry of the log, in the form of the live ones."""
    for index, group in groupby(rows, key=itemgetter("index")):
        changes = list(group)
        yield {
            "index": index,
            "at": changes[0]["at"],
            "type": changes[0]["type"],
            "changes": [{"kind": row["kind"], "id": row["id"], "state": row["state"]} for row in changes],
        }
