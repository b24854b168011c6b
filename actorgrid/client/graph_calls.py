"""What a client does with graphs of steps: submits them, finds them again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast, overload

from actorgrid.errors import BadRequest

if TYPE_CHECKING:
    from .client import Client
    from .dag import Dag, Function
    from .graph_run import GraphRun


class GraphCalls:
    """A part of :class:`~.client.Client`."""

    @overload
    def dag(self, dag: Dag | Iterable[Function], /, *, cache: bool = True) -> GraphRun: ...

    @overload
    def dag(self, name: str = "", /, **settings: Any) -> Dag: ...

    def dag(self, dag: Dag | Iterable[Function] | str = "", /, **settings: Any) -> GraphRun | Dag:
        """Submit a graph of steps: a Dag, or functions in the words of ``Function``; gives its run. With
        ``cache=False`` nothing of it is taken over from earlier graphs; what its steps give is kept for later ones.

        With a name (or nothing) and settings of a Dag, a new one for ``with client.dag("name") as dag:``, which is
        submitted at the end of the block: ``dag.submitted`` is its run. Raises InvalidGraph, CyclicGraph,
        MissingProducer, UnsatisfiableCost, UnpicklableFunction.
        """
        from .dag import Dag
        from .function_lists import as_dag
        from .graph_run import GraphRun
        from .graph_submit import submit

        client = cast("Client", self)
        if isinstance(dag, str):
            made = Dag(dag, **settings)
            made._client = client
            return made
        refresh = settings.pop("cache", True) is False
        if settings:
            raise BadRequest("a graph that is made has its settings", asked=", ".join(settings), hint="Dag(name, ...)")
        graph = as_dag(dag)
        graph._run = GraphRun(
            client, submit(client.http, graph, client._working_dir, client._environment, refresh), graph
        )
        return graph._run

    def graph(self, graph_id: str, /) -> GraphRun:
        """A graph that was submitted, by this client or another. Raises UnknownJob."""
        from .graph_run import GraphRun

        run = GraphRun(cast("Client", self), graph_id)
        run.look()
        return run
