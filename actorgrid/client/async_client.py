"""The client for asyncio: the same verbs, awaited. Built on the synchronous one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from .async_function_calls import AsyncFunctionCalls
from .client import Client, connect
from .locks import AsyncLock, OnLost
from .state import SharedState
from .state_batch import StateBatch

if TYPE_CHECKING:
    import os
    from types import TracebackType


T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")
_END = object()


class _Awaiting(Generic[S]):
    """Whose verbs are those of *sync*, awaited."""

    sync: S


def _awaited(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Awaiting[S], P], Coroutine[Any, Any, T]]:
    """The same verb, awaited: it runs in a thread of the loop's default executor."""

    @wraps(verb)
    async def awaited(self: _Awaiting[S], /, *args: P.args, **more: P.kwargs) -> T:
        return await asyncio.to_thread(getattr(self.sync, verb.__name__), *args, **more)

    return awaited


class AsyncClient(_Awaiting[Client], AsyncFunctionCalls):
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

    put = _awaited(Client.put)
    run = _awaited(Client.run)
    actor = _awaited(Client.actor)
    cancel = _awaited(Client.cancel)
    edit = _awaited(Client.edit)
    submit_job = _awaited(Client.submit_job)
    jobs = _awaited(Client.jobs)
    job = _awaited(Client.job)
    wait = _awaited(Client.wait)
    why = _awaited(Client.why)
    result = _awaited(Client.result)
    files = _awaited(Client.files)
    fetch = _awaited(Client.fetch)
    locks = _awaited(Client.locks)
    cluster = _awaited(Client.cluster)
    hosts = _awaited(Client.hosts)
    gpus = _awaited(Client.gpus)
    allocations = _awaited(Client.allocations)
    leases = _awaited(Client.leases)
    objects = _awaited(Client.objects)
    cancel_lease = _awaited(Client.cancel_lease)
    decisions = _awaited(Client.decisions)
    performance = _awaited(Client.performance)
    inspect = _awaited(Client.inspect)
    config = _awaited(Client.config)
    set_config = _awaited(Client.set_config)
    quotas = _awaited(Client.quotas)
    set_quota = _awaited(Client.set_quota)
    remove_quota = _awaited(Client.remove_quota)
    why_host = _awaited(Client.why_host)
    faults = _awaited(Client.faults)
    maintenance = _awaited(Client.maintenance)
    start_maintenance = _awaited(Client.start_maintenance)
    end_maintenance = _awaited(Client.end_maintenance)
    shutdown = _awaited(Client.shutdown)
    close = _awaited(Client.close)

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


class AsyncState(_Awaiting[SharedState]):
    """``client.state``, awaited: every verb of SharedState, and ``async for entry in state.watch(prefix)``."""

    def __init__(self, state: SharedState) -> None:
        self.sync = state

    def in_namespace(self, name: str) -> AsyncState:
        """The state of a namespace."""
        return AsyncState(self.sync.in_namespace(name))

    def batch(self) -> StateBatch:
        """An empty batch, to be filled and applied: ``await state.apply(batch)``."""
        return self.sync.batch()

    put = _awaited(SharedState.put)
    compare_and_put = _awaited(SharedState.compare_and_put)
    put_if_absent = _awaited(SharedState.put_if_absent)
    delete = _awaited(SharedState.delete)
    apply = _awaited(SharedState.apply)
    usage = _awaited(SharedState.usage)
    get = _awaited(SharedState.get)
    entry = _awaited(SharedState.entry)
    increment = _awaited(SharedState.increment)
    decrement = _awaited(SharedState.decrement)
    add_to_set = _awaited(SharedState.add_to_set)
    remove_from_set = _awaited(SharedState.remove_from_set)
    put_field = _awaited(SharedState.put_field)
    remove_field = _awaited(SharedState.remove_field)
    enable = _awaited(SharedState.enable)
    disable = _awaited(SharedState.disable)
    list = _awaited(SharedState.list)

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
