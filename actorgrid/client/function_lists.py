"""Graphs that are given as lists of functions, in the words of the design of the distributed executor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from actorgrid.errors import BadRequest

from .dag import Dag, Function


def as_dag(value: Any) -> Dag:
    """*value*, which is a Dag, or functions in the words of :class:`Function`. Raises BadRequest."""
    if isinstance(value, Dag):
        return value
    if isinstance(value, Iterable):
        functions = list(value)
        if functions and all(isinstance(each, Function) for each in functions):
            return of_functions(cast("list[Function]", functions))
    raise BadRequest(
        "that is no graph", asked=type(value).__name__, hint="a Dag, or a list of Function(id, args, code, ...)"
    )


def of_functions(functions: Sequence[Function], name: str = "") -> Dag:
    """A graph of functions that name each other, in any order. Raises InvalidGraph, CyclicGraph, MissingProducer."""
    from actorgrid.dag.model import Graph, GraphStep

    steps = [
        GraphStep(each.id, inputs=tuple(arg if isinstance(arg, str) else str(arg[0]) for arg in each.args))
        for each in functions
    ]
    order = Graph(steps).order
    dag = Dag(name)
    for number in order:
        dag.add_function(functions[number])
    return dag
