"""More steps from inside of a step: ``return actorgrid.extend(dag)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actorgrid.errors import InvalidGraph
from actorgrid.graph_extension import GraphExtension

if TYPE_CHECKING:
    from .dag import Dag


def extend(dag: Dag, value: Any = None) -> GraphExtension:
    """Have the steps of *dag* follow in the graph whose step returns this; *value* is what that step gave itself.

    The step was added with ``extends=True``. Its further steps are called ``ITS ID/THEIR ID``; what they take is in
    their arguments or in *dag*. What holds for the graph as a whole (strategy, environment, named resources) holds for
    them. Raises InvalidGraph, UnpicklableFunction.
    """
    from .pickling import PYTHON

    if not len(dag):
        raise InvalidGraph("there are no further steps", asked="extend(dag)", hint="return the value itself")
    dag.check_plain()
    request, bundle = dag.request(python=PYTHON, relative=True)
    return GraphExtension(value, {"steps": request["steps"]}, bundle)
