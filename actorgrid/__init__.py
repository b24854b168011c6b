"""Erlang-style actors that run a GPU cluster.

Names load on first use, so that a process which needs only ``actorgrid.hotpath`` does not pay for
the rest, and so that every layer may import ``actorgrid.errors``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from actorgrid.client.actor_handles import ActorHandle as ActorHandle
    from actorgrid.client.actor_handles import current_actor as current_actor
    from actorgrid.client.async_client import AsyncClient as AsyncClient
    from actorgrid.client.client import Client as Client
    from actorgrid.client.client import connect as connect
    from actorgrid.client.dag import Dag as Dag
    from actorgrid.client.dag import Function as Function
    from actorgrid.client.environment import Environment as Environment
    from actorgrid.client.extension import extend as extend
    from actorgrid.client.joblib_backend import register_joblib as register_joblib
    from actorgrid.client.local_cluster import LocalCluster as LocalCluster
    from actorgrid.client.sweep_reports import report as report
    from actorgrid.client.task import task as task
    from actorgrid.client.user_actors import actor as actor
    from actorgrid.client.waiting import as_completed as as_completed
    from actorgrid.client.waiting import gather as gather
    from actorgrid.client.waiting import wait as wait
    from actorgrid.dag.early_stopping import MedianStopping as MedianStopping
    from actorgrid.dag.early_stopping import StoppedTrial as StoppedTrial
    from actorgrid.dag.early_stopping import SuccessiveHalving as SuccessiveHalving
    from actorgrid.dag.step_files import StepFiles as StepFiles
    from actorgrid.errors import ActorGridError as ActorGridError
    from actorgrid.fencing import FencingToken as FencingToken
    from actorgrid.objects.refs import Ref as Ref
    from actorgrid.serving.service import batch as batch
    from actorgrid.serving.service import service as service
    from actorgrid.task_context import CurrentTask as CurrentTask
    from actorgrid.task_context import current_task as current_task

_HOME = {
    "ActorGridError": "actorgrid.errors",
    "ActorHandle": "actorgrid.client.actor_handles",
    "AsyncClient": "actorgrid.client.async_client",
    "Client": "actorgrid.client.client",
    "CurrentTask": "actorgrid.task_context",
    "Dag": "actorgrid.client.dag",
    "Environment": "actorgrid.client.environment",
    "FencingToken": "actorgrid.fencing",
    "Function": "actorgrid.client.dag",
    "LocalCluster": "actorgrid.client.local_cluster",
    "MedianStopping": "actorgrid.dag.early_stopping",
    "Ref": "actorgrid.objects.refs",
    "StepFiles": "actorgrid.dag.step_files",
    "StoppedTrial": "actorgrid.dag.early_stopping",
    "SuccessiveHalving": "actorgrid.dag.early_stopping",
    "actor": "actorgrid.client.user_actors",
    "as_completed": "actorgrid.client.waiting",
    "batch": "actorgrid.serving.service",
    "connect": "actorgrid.client.client",
    "current_task": "actorgrid.task_context",
    "current_actor": "actorgrid.client.actor_handles",
    "extend": "actorgrid.client.extension",
    "gather": "actorgrid.client.waiting",
    "register_joblib": "actorgrid.client.joblib_backend",
    "report": "actorgrid.client.sweep_reports",
    "service": "actorgrid.serving.service",
    "task": "actorgrid.client.task",
    "wait": "actorgrid.client.waiting",
}
__all__ = [
    "ActorGridError",
    "ActorHandle",
    "AsyncClient",
    "Client",
    "CurrentTask",
    "Dag",
    "Environment",
    "FencingToken",
    "Function",
    "LocalCluster",
    "MedianStopping",
    "Ref",
    "StepFiles",
    "StoppedTrial",
    "SuccessiveHalving",
    "__version__",
    "actor",
    "as_completed",
    "batch",
    "connect",
    "current_actor",
    "current_task",
    "extend",
    "gather",
    "register_joblib",
    "report",
    "service",
    "task",
    "wait",
]


def __dir__() -> list[str]:
    """The public names, loaded or not; beside them only what a module has anyway."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
