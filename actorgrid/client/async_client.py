"""The client for asyncio: the same verbs, awaited. Built on the synchronous one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from .client import Client, CommandResult, connect
from .locks import AsyncLock, OnLost
from .options import options_of

if TYPE_CHECKING:
    import os
    from types import TracebackType

T = TypeVar("T")
_END = object()


class AsyncClient:
    """``await client.submit(fn, x)`` gives the value; ``client.start(fn, x)`` an asyncio future.

    Control requests run in threads of the loop's default executor. Make one with ``await AsyncClient.connect()``,
    or over a synchronous client: ``AsyncClient(client)``; ``async with`` closes it.
    """

    def __init__(self, client: Client) -> None:
        self.sync = client
        self.state = AsyncState(client)

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

    def start(
        self, fn: Callable[..., T], /, *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> asyncio.Future[T]:
        """Begin one call; cancelling the asyncio future cancels the task if it has not started."""
        return asyncio.wrap_future(self.sync.submit(fn, *args, kwargs=kwargs, **options))

    async def submit(
        self, fn: Callable[..., T], /, *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> T:
        """The value of one call."""
        return await self.start(fn, *args, kwargs=kwargs, **options)

    async def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], chunk: int = 1, window: int = 4096, **options: Any
    ) -> AsyncIterator[T]:
        """Values in order: ``async for value in client.map(fn, items)``."""
        from .map_results import MapResults

        results: MapResults[T] = MapResults(
            self.sync, options_of(options), fn, iterables, chunk=chunk, window=window, progress=False
        )
        try:
            while (value := await asyncio.to_thread(next, results, _END)) is not _END:
                yield value  # type: ignore[misc]
        finally:
            results.cancel()

    async def run(self, command: list[str], **options: Any) -> CommandResult:
        """Run a command as a job and wait for its end."""
        return await asyncio.to_thread(partial(self.sync.run, command, **options))

    async def cancel(self, work: Any, *, force: bool = False) -> bool:
        """Cancel a job by its id, or a concurrent future of the synchronous client."""
        return await asyncio.to_thread(partial(self.sync.cancel, work, force=force))

    async def edit(self, job_id: str, **changed: Any) -> dict[str, Any]:
        """Change a job that waits, as Client.edit()."""
        return await asyncio.to_thread(partial(self.sync.edit, job_id, **changed))

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

    async def locks(self, prefix: str = "") -> list[dict[str, Any]]:
        """Locks that somebody holds."""
        return await asyncio.to_thread(self.sync.locks, prefix)

    async def submit_job(self, **request: Any) -> dict[str, Any]:
        """Have a job accepted."""
        return await asyncio.to_thread(partial(self.sync.submit_job, **request))

    async def jobs(self, state: Any = None, limit: int = 100, before: float | None = None) -> list[dict[str, Any]]:
        """Jobs, newest first."""
        return await asyncio.to_thread(self.sync.jobs, state, limit, before)

    async def job(self, job_id: str, wait_s: float = 0.0) -> dict[str, Any]:
        """One job, when it is final or *wait_s* have passed."""
        return await asyncio.to_thread(self.sync.job, job_id, wait_s)

    async def wait(self, job_id: str, timeout: float | None = None) -> dict[str, Any]:
        """The job once it is final."""
        return await asyncio.to_thread(self.sync.wait, job_id, timeout)

    async def why(self, job_id: str) -> dict[str, Any]:
        """Why a job is where it is."""
        return await asyncio.to_thread(self.sync.why, job_id)

    async def logs(self, job_id: str, stream: str = "stdout", **options: Any) -> AsyncIterator[bytes]:
        """Output of a job, piece by piece."""
        pieces = self.sync.logs(job_id, stream, **options)
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece
        finally:
            await asyncio.to_thread(getattr(pieces, "close", lambda: None))

    async def result(self, job_id: str, timeout: float | None = None) -> Any:
        """The value of a function job."""
        return await asyncio.to_thread(self.sync.result, job_id, timeout)

    async def cluster(self) -> dict[str, Any]:
        """Counts and figures of the whole."""
        return await asyncio.to_thread(self.sync.cluster)

    async def hosts(self) -> list[dict[str, Any]]:
        """Hosts."""
        return await asyncio.to_thread(self.sync.hosts)

    async def gpus(self) -> list[dict[str, Any]]:
        """Devices."""
        return await asyncio.to_thread(self.sync.gpus)

    async def allocations(self) -> list[dict[str, Any]]:
        """What attempts and leases hold."""
        return await asyncio.to_thread(self.sync.allocations)

    async def leases(self) -> list[dict[str, Any]]:
        """Workers that sessions hold."""
        return await asyncio.to_thread(self.sync.leases)

    async def cancel_lease(self, lease_id: str) -> None:
        """End a session's lease."""
        await asyncio.to_thread(self.sync.cancel_lease, lease_id)

    async def decisions(self, limit: int = 100) -> list[dict[str, Any]]:
        """The latest placements."""
        return await asyncio.to_thread(self.sync.decisions, limit)

    async def performance(self) -> dict[str, Any]:
        """The host's own figures."""
        return await asyncio.to_thread(self.sync.performance)

    async def inspect(self) -> dict[str, Any]:
        """The supervision tree (``tree``), and how each of the host's processes says it is (``servers``)."""
        return await asyncio.to_thread(self.sync.inspect)

    async def config(self) -> list[dict[str, Any]]:
        """Settings."""
        return await asyncio.to_thread(self.sync.config)

    async def set_config(self, key: str, value: Any) -> dict[str, Any]:
        """Change a live setting."""
        return await asyncio.to_thread(self.sync.set_config, key, value)

    async def quotas(self) -> list[dict[str, Any]]:
        """Who may hold what, and holds."""
        return await asyncio.to_thread(self.sync.quotas)

    async def set_quota(self, user: str, **limits: Any) -> dict[str, Any]:
        """Hold a user to these limits at once, as Client.set_quota()."""
        return await asyncio.to_thread(partial(self.sync.set_quota, user, **limits))

    async def remove_quota(self, user: str) -> dict[str, Any]:
        """Take the user's own quota away."""
        return await asyncio.to_thread(self.sync.remove_quota, user)

    def job_future(self, job_id: str) -> asyncio.Future[Any]:
        """An asyncio future for a function job that exists already."""
        return asyncio.wrap_future(self.sync.job_future(job_id))

    async def events(self, start: int | None = None) -> AsyncIterator[Any]:
        """What the ledger applies, from index *start* or from now on."""
        found = self.sync.events(start)
        while (event := await asyncio.to_thread(next, found, _END)) is not _END:
            yield event

    async def close(self) -> None:
        """As Client.close()."""
        await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncState:
    """``client.state``, awaited: every verb of SharedState, and ``async for entry in state.watch(prefix)``."""

    def __init__(self, client: Client) -> None:
        self._state = client.state

    async def put(self, key: str, value: Any, type: str = "lww_register") -> Any:
        """Set a register."""
        return await asyncio.to_thread(self._state.put, key, value, type)

    async def get(self, key: str, default: Any = ...) -> Any:
        """The value, or *default*."""
        return await asyncio.to_thread(self._state.get, key, default)

    async def entry(self, key: str) -> dict[str, Any]:
        """``{"key", "type", "value"}``."""
        return await asyncio.to_thread(self._state.entry, key)

    async def increment(self, key: str, by: int = 1, type: str = "pn_counter") -> Any:
        """Add to a counter."""
        return await asyncio.to_thread(self._state.increment, key, by, type)

    async def decrement(self, key: str, by: int = 1) -> Any:
        """Take from a counter."""
        return await asyncio.to_thread(self._state.decrement, key, by)

    async def add_to_set(self, key: str, item: Any) -> Any:
        """Add to a set."""
        return await asyncio.to_thread(self._state.add_to_set, key, item)

    async def remove_from_set(self, key: str, item: Any) -> Any:
        """Remove from a set."""
        return await asyncio.to_thread(self._state.remove_from_set, key, item)

    async def put_field(self, key: str, field: str, value: Any) -> Any:
        """Set a field of a map."""
        return await asyncio.to_thread(self._state.put_field, key, field, value)

    async def remove_field(self, key: str, field: str) -> Any:
        """Remove a field of a map."""
        return await asyncio.to_thread(self._state.remove_field, key, field)

    async def enable(self, key: str) -> Any:
        """Raise a flag."""
        return await asyncio.to_thread(self._state.enable, key)

    async def disable(self, key: str) -> Any:
        """Lower a flag."""
        return await asyncio.to_thread(self._state.disable, key)

    async def list(self, prefix: str = "", limit: int = 1000) -> list[dict[str, Any]]:
        """Entries by key."""
        return await asyncio.to_thread(self._state.list, prefix, limit)

    async def watch(self, prefix: str = "", *, initial: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Entries as they change. Each wait holds one thread of the loop's default executor."""
        changes = self._state.watch(prefix, initial=initial)
        while True:
            yield await asyncio.to_thread(next, changes)
