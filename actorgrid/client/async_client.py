"""The client for asyncio: the same verbs, awaited. Built on the synchronous one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from .async_function_calls import AsyncFunctionCalls
from .awaited import Awaiting, awaited
from .client import Client, connect
from .locks import AsyncLock, OnLost
from .state import SharedState
from .state_batch import StateBatch

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from .async_graph_run import AsyncGraphRun
    from .async_light_shards import AsyncLightShards, AsyncProcessRef
    from .dag import Dag, Function

_END = object()


class AsyncClient(Awaiting[Client], AsyncFunctionCalls):
    """``await client.submit(fn, x)`` gives the value; ``client.start(fn, x)`` an asyncio future.

    Control requests run in threads of the loop's default executor. Make one with ``await AsyncClient.connect()``,
    or over a synchronous client: ``AsyncClient(client)``; ``async with`` closes it.
    """

    def __init__(self, client: Client) -> None:
        self.sync = client
        self.state = AsyncState(client.state)

    @classmethod
    async def connect(
        cls,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> AsyncClient:
        """As actorgrid.connect()."""
        return cls(await asyncio.to_thread(partial(connect, url, token, data_dir=data_dir, **options)))

    put = awaited(Client.put)
    run = awaited(Client.run)
    actor = awaited(Client.actor)
    cancel = awaited(Client.cancel)
    edit = awaited(Client.edit)
    retry = awaited(Client.retry)
    wait_all = awaited(Client.wait_all)
    wait_any = awaited(Client.wait_any)
    cancel_labelled = awaited(Client.cancel_labelled)
    submit_job = awaited(Client.submit_job)
    submit_work = awaited(Client.submit_work)
    schedule = awaited(Client.schedule)
    schedules = awaited(Client.schedules)
    find_schedule = awaited(Client.find_schedule)
    serve = awaited(Client.serve)
    services = awaited(Client.services)
    find_service = awaited(Client.find_service)
    jobs = awaited(Client.jobs)
    job = awaited(Client.job)
    wait = awaited(Client.wait)
    why = awaited(Client.why)
    result = awaited(Client.result)
    files = awaited(Client.files)
    fetch = awaited(Client.fetch)
    locks = awaited(Client.locks)
    cluster = awaited(Client.cluster)
    hosts = awaited(Client.hosts)
    gpus = awaited(Client.gpus)
    allocations = awaited(Client.allocations)
    leases = awaited(Client.leases)
    objects = awaited(Client.objects)
    usage = awaited(Client.usage)
    model_usage = awaited(Client.model_usage)
    cancel_lease = awaited(Client.cancel_lease)
    decisions = awaited(Client.decisions)
    performance = awaited(Client.performance)
    inspect = awaited(Client.inspect)
    config = awaited(Client.config)
    set_config = awaited(Client.set_config)
    quotas = awaited(Client.quotas)
    set_quota = awaited(Client.set_quota)
    remove_quota = awaited(Client.remove_quota)
    tenants = awaited(Client.tenants)
    tenant = awaited(Client.tenant)
    create_tenant = awaited(Client.create_tenant)
    set_tenant = awaited(Client.set_tenant)
    remove_tenant = awaited(Client.remove_tenant)
    why_host = awaited(Client.why_host)
    faults = awaited(Client.faults)
    maintenance = awaited(Client.maintenance)
    start_maintenance = awaited(Client.start_maintenance)
    end_maintenance = awaited(Client.end_maintenance)
    shutdown = awaited(Client.shutdown)
    close = awaited(Client.close)

    async def dag(self, dag: Dag | Iterable[Function], /, *, cache: bool = True) -> AsyncGraphRun:
        """Submit a graph of steps, as Client.dag() does; gives its run."""
        from .async_graph_run import AsyncGraphRun

        return AsyncGraphRun(await asyncio.to_thread(partial(self.sync.dag, dag, cache=cache)))

    async def graph(self, graph_id: str, /) -> AsyncGraphRun:
        """A graph that was submitted, by this client or another. Raises UnknownJob."""
        from .async_graph_run import AsyncGraphRun

        return AsyncGraphRun(await asyncio.to_thread(self.sync.graph, graph_id))

    async def submit_array(self, command: Sequence[str], indexes: str | Iterable[int], **options: Any) -> AsyncGraphRun:
        """Have a command run once for each index, as ``Client.submit_array``."""
        from .async_graph_run import AsyncGraphRun

        return AsyncGraphRun(await asyncio.to_thread(partial(self.sync.submit_array, command, indexes, **options)))

    async def start_shards(
        self, group: str, count: int, root: Any = None, *args: Any, patience_s: float = 8.0, **options: Any
    ) -> AsyncLightShards:
        """Begin a set of shards of light processes, as ``Client.start_shards``."""
        from .async_light_shards import AsyncLightShards

        begin = partial(self.sync.start_shards, group, count, root, *args, patience_s=patience_s, **options)
        return AsyncLightShards(await asyncio.to_thread(begin))

    async def shards(self, group: str) -> AsyncLightShards:
        """The set of shards of that name. Raises NoSuchActor, CallTimeout while its first shard is begun again."""
        from .async_light_shards import AsyncLightShards

        return AsyncLightShards(await asyncio.to_thread(self.sync.shards, group))

    async def whereis(self, name: str, group: str) -> AsyncProcessRef | None:
        """The light process that has the name, in the set *group*; ``None`` when nobody has. Raises as ``shards``."""
        return await (await self.shards(group)).whereis(name)

    def lock(
        self,
        name: str,
        *,
        ttl_s: float = 10.0,
        slots: int = 1,
        wait_s: float | None = None,
        on_lost: OnLost | None = None,
    ) -> AsyncLock:
        """``async with client.lock("name") as lock:``; terms as for Client.lock()."""
        return AsyncLock(self.sync.lock_terms(name, ttl_s, slots, wait_s, on_lost))

    def semaphore(self, name: str, slots: int, **terms: Any) -> AsyncLock:
        """A lock that *slots* may hold at once."""
        return self.lock(name, slots=slots, **terms)

    async def logs(self, job_id: str, stream: str = "stdout", **options: Any) -> AsyncIterator[bytes]:
        """Output of a job, piece by piece."""
        pieces = self.sync.logs(job_id, stream, **options)
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece
        finally:
            await asyncio.to_thread(getattr(pieces, "close", lambda: None))

    def job_future(self, job_id: str) -> asyncio.Future[Any]:
        """An asyncio future for a function job that exists already."""
        return asyncio.wrap_future(self.sync.job_future(job_id))

    async def events(self, start: int | None = None) -> AsyncIterator[Any]:
        """What the ledger applies, from index *start* or from now on."""
        found = self.sync.events(start)
        while (event := await asyncio.to_thread(next, found, _END)) is not _END:
            yield event

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncState(Awaiting[SharedState]):
    """``client.state``, awaited: every verb of SharedState, and ``async for entry in state.watch(prefix)``."""

    def __init__(self, state: SharedState) -> None:
        self.sync = state

    def in_namespace(self, name: str) -> AsyncState:
        """The state of a namespace."""
        return AsyncState(self.sync.in_namespace(name))

    def batch(self) -> StateBatch:
        """An empty batch, to be filled and applied: ``await state.apply(batch)``."""
        return self.sync.batch()

    put = awaited(SharedState.put)
    compare_and_put = awaited(SharedState.compare_and_put)
    put_if_absent = awaited(SharedState.put_if_absent)
    delete = awaited(SharedState.delete)
    apply = awaited(SharedState.apply)
    usage = awaited(SharedState.usage)
    get = awaited(SharedState.get)
    entry = awaited(SharedState.entry)
    increment = awaited(SharedState.increment)
    decrement = awaited(SharedState.decrement)
    add_to_set = awaited(SharedState.add_to_set)
    remove_from_set = awaited(SharedState.remove_from_set)
    put_field = awaited(SharedState.put_field)
    remove_field = awaited(SharedState.remove_field)
    enable = awaited(SharedState.enable)
    disable = awaited(SharedState.disable)
    list = awaited(SharedState.list)

    async def watch(
        self,
        prefix: str = "",
        *,
        initial: bool = False,
        after: str | None = None,
        on_resync: Callable[[str], None] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Entries as they change, as of ``SharedState.watch``. Each wait holds one thread of the loop's default
        executor.
        """
        changes = self.sync.watch(prefix, initial=initial, after=after, on_resync=on_resync)
        while (entry := await asyncio.to_thread(next, changes, _END)) is not _END:
            yield cast("dict[str, Any]", entry)
