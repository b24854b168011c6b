"""The backend "actorgrid" of joblib: its batches of calls as session tasks.

joblib (the extra ``joblib``, 1.3 or newer) is loaded by ``actorgrid.register_joblib()``, and not before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from actorgrid.errors import ActorGridError, BadRequest, NotSupported

from .options import options_of
from .task import default_client

if TYPE_CHECKING:
    from .client import Client


class TaskBatches:
    """Batches of joblib's calls as session tasks of *client*, or of the default one, with *options* of tasks.

    With joblib's AutoBatchingMixin and ParallelBackendBase as further bases it is a backend. ``n_jobs=-1`` means as
    many as the cluster has CPUs for. A nested ``Parallel`` runs in the task that calls it, on as many threads as the
    task has whole CPUs. Raises BadRequest for an option that does not exist.
    """

    MIN_IDEAL_BATCH_DURATION = 0.05
    """A task costs some 50 µs: a thousandth of that."""
    MAX_IDEAL_BATCH_DURATION = 0.5
    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(
        self,
        client: Client | None = None,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        **options: Any,
    ) -> None:
        inner: Any = super().__init__
        inner(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._level = nesting_level or 0
        self._client = client
        self._options = options_of(options)
        if self._options.durable:
            raise BadRequest("batches of joblib are session tasks", asked="durable=True")
        self._lock = threading.Lock()
        self._unfinished: set[Future[Any]] = set()
        # What joblib does at a batch's end takes the next items of the user's iterator: not in the client's own thread.
        self._callbacks: ThreadPoolExecutor | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many run side by side: *n_jobs*, or counted from what the cluster has room for when it is negative."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        cpus = sum(host["cpu_milli"] for host in self._chosen().hosts()) / 1000
        room = max(1, int(cpus / (self._options.cpus or 1.0)))
        return max(1, room + 1 + (-1 if n_jobs is None else n_jobs))

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Send one batch; *callback* is called with its future at the end."""
        future: Future[Any]
        try:
            future = self._chosen().submit_with(self._options, func, (), {})
        except ActorGridError as error:  # joblib calls from a thread whose errors nobody sees
            future = Future()
            future.set_exception(error)
        with self._lock:
            self._unfinished.add(future)
            if self._callbacks is None:
                self._callbacks = ThreadPoolExecutor(1, "actorgrid-joblib")
            callbacks = self._callbacks
        future.add_done_callback(self._unfinished.discard)
        if callback is not None:
            future.add_done_callback(lambda done: callbacks.submit(callback, done))
        return future

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The values of a batch, or its error."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel what has not started."""
        with self._lock:
            unfinished = list(self._unfinished)
        for future in unfinished:
            future.cancel()

    def terminate(self) -> None:
        """End the thread of callbacks; the client stays."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            callbacks.shutdown(wait=False)

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Who runs a ``Parallel`` that is called within a task of ours."""
        from joblib.parallel import SequentialBackend, ThreadingBackend

        level = self._level + 1
        threads = int(self._options.cpus)
        if threads > 1:
            return ThreadingBackend(nesting_level=level), threads
        return SequentialBackend(nesting_level=level), None

    def _chosen(self) -> Client:
        return self._client if self._client is not None else default_client()


def register_joblib() -> None:
    """Make ``joblib.parallel_config(backend="actorgrid")`` known, for scikit-learn and whatever else uses joblib.

    The backend takes ``client=`` and options of tasks (``gpus=``, ``cpus=``, ``retries=``). Raises NotSupported where
    joblib is missing or older than 1.3.
    """
    try:
        from joblib.parallel import AutoBatchingMixin, ParallelBackendBase, register_parallel_backend
    except ImportError as error:
        raise NotSupported(
            "the backend needs joblib 1.3 or newer", found=str(error), hint="pip install 'actorgrid[joblib]'"
        ) from error
    register_parallel_backend(
        "actorgrid", type("ActorgridBackend", (TaskBatches, AutoBatchingMixin, ParallelBackendBase), {})
    )
