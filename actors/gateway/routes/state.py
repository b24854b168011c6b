"""The shared state: read, mutate, watch; and the events of the ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

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
from actorgrid.actors.gateway.server.rights import own_changes
from actorgrid.actors.gateway.server.route import RequestContext, Route, RouteTable
from actorgrid.actors.gateway.server.state_stream import FIRST, StateStream
from actorgrid.actors.gateway.server.stream import send_events
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
from actorgrid.actors.replication.namespaces import CLUSTER, check_read, check_write, may_see
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


@ROUTES.add("GET", "/api/state", StateAnswer, "state", query=StateQuery)
async def get_state(call: RequestContext) -> Any:
    """Entries of the shared state, by key.

    Those under a prefix.
    """
    query = call.query_as(StateQuery)
    asked = ReadPrefix(query.prefix, query.limit, call.only, _shared(call), query.behind)
    return {"entries": await call.ask("distributed_state", asked)}


def _key(call: RequestContext, key: str) -> str:
    if len(key) > MAX_KEY or "\0" in key:
        raise BadRequest("not a key", asked=key[:100], hint=f"at most {MAX_KEY} characters, no NUL")
    check_read(key, call.only, _shared(call))
    return key


def _shared(call: RequestContext) -> tuple[str, ...]:
    """The namespaces that everybody may use."""
    return tuple(name.strip() for name in call.app.settings.state.shared_namespaces.split(",") if name.strip())


@ROUTES.add("GET", "/api/state-watch", "text/event-stream", "state", query=WatchQuery)
async def watch_state(call: RequestContext) -> Any:
    """Changes of the shared state under a prefix, as server-sent events; resumes behind Last-Event-ID."""
    query = call.query_as(WatchQuery)
    app = call.app
    shared = _shared(call)
    resumed = call.http.headers.get("Last-Event-ID", "")

    async def read(after: str, behind: str) -> ChangesPage:
        asked = ReadChanges(query.prefix, after, behind, CHANGES_PAGE, call.only, shared)
        page: ChangesPage = await call.ask("distributed_state", asked, 10.0)
        return page

    after = "" if resumed == FIRST else resumed
    if not after and not query.initial:
        # Before it is listened: what changes from here on is behind this position, and comes in any case.
        after = (await read("", LAST_KEY))["upto"]
    with app.hub.listen_to_state(query.prefix) as listener:
        await app.bridge.run(partial(app.watch_prefix, query.prefix), 10.0)
        try:
            stream = StateStream(call.http, read, lambda key: may_see(key, call.only, shared), bool(resumed))
            return await stream.send(listener, after)
        finally:
            app.bridge.post(partial(app.unwatch_prefix, query.prefix))


@ROUTES.add("GET", "/api/state-usage", StateUsageAnswer, "state", query=UsageQuery)
async def get_state_usage(call: RequestContext) -> Any:
    """Sizes of the shared state by namespace and prefix, and its traffic by host, as this host sees it."""
    query = call.query_as(UsageQuery)
    return await call.ask("distributed_state", ReadUsage(query.prefix, query.depth, query.rows))


@ROUTES.add(
    "POST", "/api/state-batch", StateAnswer, "state", request=StateBatchRequest, errors=(*WRITE_ERRORS, UnknownKey)
)
async def post_state_batch(call: RequestContext) -> Any:
    """Apply several mutators, all or none, in one commit of this host."""
    batch = call.body_as(StateBatchRequest)
    mutations = tuple(_mutate(call, change.key, change) for change in batch.mutations)
    asked = MutateBatch(mutations, batch.durability, batch.within_s)
    return {"entries": await call.ask("distributed_state", asked, 10.0 + batch.within_s)}


@ROUTES.add("GET", "/api/state/{key:.+}", StateEntry, "state", errors=(UnknownKey,))
async def get_key(call: RequestContext) -> Any:
    """One entry."""
    key = _key(call, call.part("key"))
    if key.startswith(HEALTH):
        try:
            return {**await call.ask("distributed_state", Read(f"{CLUSTER}/{key}")), "key": key}
        except UnknownKey:
            pass  # a host of the version before tells it under the old name
    return await call.ask("distributed_state", Read(key))


@ROUTES.add(
    "POST",
    "/api/state/{key:.+}",
    StateEntry,
    "state",
    request=StateMutation,
    errors=(*WRITE_ERRORS, UnknownKey),
)
async def post_key(call: RequestContext) -> Any:
    """Apply one mutator to one key."""
    change = call.body_as(StateMutation)
    request = _mutate(call, call.part("key"), change)
    request = replace(request, durability=change.durability, within_s=change.within_s)
    return await call.ask("distributed_state", request, 10.0 + change.within_s)


def _mutate(call: RequestContext, key: str, change: StateChange) -> Mutate:
    check_write(_key(call, key))
    return Mutate(
        key,
        change.type,
        change.operation,
        change.value,
        change.field,
        ttl_s=change.ttl_s,
        expected=change.expects,
    )


@ROUTES.add("GET", "/api/events", "text/event-stream", "events", query=EventsQuery)
async def get_events(call: RequestContext) -> Any:
    """What the ledger applied, as server-sent events; resumes at from= or after Last-Event-ID."""
    first = call.query_as(EventsQuery).from_
    resumed = call.http.headers.get("Last-Event-ID", "")
    if resumed:
        if not resumed.isdigit() or len(resumed) > 19:
            raise BadRequest("Last-Event-ID is not one of ours", asked=resumed[:40], hint="send the id as it was given")
        first = int(resumed) + 1

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
        if call.only is None:
            return await send_events(call.http, listener, start, lambda last: since(last + 1))
        users: dict[str, str | None] = {}

        async def own(item: Item) -> Item | None:
            # What was decided of it once is decided for good: a job stays its user's.
            if len(users) > USERS_KEPT:
                users.clear()
            kept = await own_changes(call, json.loads(item.data), users)
            return None if kept is None else Item(item.index, encode_json(kept))

        return await send_events(call.http, listener, start, lambda last: since(last + 1), own=own)


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
