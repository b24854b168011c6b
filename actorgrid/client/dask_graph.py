"""Dask's graphs as session tasks: ``dask.compute(x, scheduler=client)`` and ``client.get``.

Each node of a graph is one task; what it depends on it gets as futures among its arguments, so that values that are
not asked for go from worker to worker as bytes. Needs dask 2024.12 or newer (the extra ``dask``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, as_completed
from typing import TYPE_CHECKING, Any

from actorgrid.errors import NotSupported

if TYPE_CHECKING:
    from .call_options import CallOptions

WORKER = "actorgrid"
"""What callbacks of dask are told as the worker of a task: values are not shown to this process, nor who made them."""


def get(calls: CallOptions, graph: Any, keys: Any) -> Any:
    """The values of *keys* (one, or nested lists of them, which give tuples) of a dask graph.

    Tasks are submitted in dask's order and cancelled when one fails, whose error is raised. Callbacks of dask
    (``dask.diagnostics``) are called in this thread; the value that they are told of a task is ``None``. Raises
    KeyError for a key that the graph does not have, NotSupported where dask is missing or too old.
    """
    try:
        from dask._task_spec import convert_legacy_graph
        from dask.callbacks import local_callbacks
        from dask.core import flatten
        from dask.local import nested_get
    except ImportError as error:
        raise NotSupported(
            "dask graphs need dask 2024.12 or newer", found=str(error), hint="pip install 'actorgrid[dask]'"
        ) from error
    nodes = convert_legacy_graph(graph if isinstance(graph, Mapping) else graph.__dask_graph__())
    wanted = list(dict.fromkeys(flatten([keys]))) if isinstance(keys, list) else [keys]
    for key in wanted:
        if key not in nodes:
            raise KeyError(key)
    with local_callbacks(None) as callbacks:
        values = _compute(calls, nodes, wanted, list(callbacks))
    return nested_get(keys, values)


def _compute(calls: CallOptions, nodes: Mapping[Any, Any], wanted: list[Any], callbacks: list[Any]) -> dict[Any, Any]:
    started, succeeded = [], False
    state: dict[str, Any] = {"waiting": {}, "ready": [], "running": set(), "finished": set()}
    results: dict[Any, Any] = {}
    try:
        for start, *rest in callbacks:
            if start:
                start(nodes)
            started.append((start, *rest))
        results = _submit(calls, nodes, wanted)
        if callbacks:
            _tell(callbacks, nodes, results, state)
        values = {key: _value(results[key]) for key in wanted}
        succeeded = True
        return values
    finally:
        if not succeeded:
            for result in results.values():
                if isinstance(result, Future):
                    result.cancel()
        for *_, finish in started:
            if finish:
                finish(nodes, state, not succeeded)


def _submit(calls: CallOptions, nodes: Mapping[Any, Any], wanted: Iterable[Any]) -> dict[Any, Any]:
    """A future, or the value itself where there is nothing to run, for each node that *wanted* ones need."""
    from dask._task_spec import Alias, DataNode
    from dask.order import order

    needed = _needed(nodes, wanted)
    uses: dict[Any, int] = dict.fromkeys(needed, 0)
    for key in needed:
        for dependency in nodes[key].dependencies:
            uses[dependency] += 1
    place = order({key: nodes[key] for key in needed})
    results: dict[Any, Any] = {}
    for key in sorted(needed, key=place.__getitem__):
        node = nodes[key]
        if isinstance(node, Alias):
            results[key] = results[node.target]
        elif isinstance(node, DataNode) and uses[key] <= 1:
            results[key] = node.value
        else:  # data that several tasks need is sent as one value
            arguments = {dependency: results[dependency] for dependency in node.dependencies}
            results[key] = calls.submit(run_node, node, arguments)
    return results


def _needed(nodes: Mapping[Any, Any], wanted: Iterable[Any]) -> set[Any]:
    found: set[Any] = set()
    pending = list(wanted)
    while pending:
        key = pending.pop()
        if key not in found:
            found.add(key)
            pending += nodes[key].dependencies
    return found


def _tell(callbacks: list[Any], nodes: Mapping[Any, Any], results: Mapping[Any, Any], state: dict[str, Any]) -> None:
    """Call dask's callbacks as the tasks end; until all have ended, or one has failed."""
    by_future: dict[Future[Any], list[Any]] = {}
    for key, result in results.items():
        if isinstance(result, Future):
            by_future.setdefault(result, []).append(key)
        else:
            state["finished"].add(key)
    state["running"].update(key for keys in by_future.values() for key in keys)
    for which in (1, 2):  # start_state, and pretask for each
        for callback in callbacks:
            if callback[which] and which == 1:
                callback[which](nodes, state)
            elif callback[which]:
                for key in list(state["running"]):
                    callback[which](key, nodes, state)
    for future in as_completed(by_future):
        _value(future)
        for key in by_future[future]:
            state["running"].discard(key)
            state["finished"].add(key)
            for callback in callbacks:
                if callback[3]:
                    callback[3](key, None, nodes, state, WORKER)


def _value(result: Any) -> Any:
    return result.result() if isinstance(result, Future) else result


def run_node(node: Callable[[dict[Any, Any]], Any], values: dict[Any, Any]) -> Any:
    """Run one node of a graph, on a worker."""
    return node(values)
