"""Erlang-style actors that run a GPU cluster.

Names load on first use, so that a process which needs only ``actorgrid.hotpath`` does not pay for
the rest, and so that every layer may import ``actorgrid.errors``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from actorgrid.client.async_client import AsyncClient as AsyncClient
    from actorgrid.client.client import Client as Client
    from actorgrid.client.client import connect as connect
    from actorgrid.client.local_cluster import LocalCluster as LocalCluster
    from actorgrid.client.task import task as task
    from actorgrid.errors import ActorGridError as ActorGridError

_HOME = {
    "ActorGridError": "actorgrid.errors",
    "AsyncClient": "actorgrid.client.async_client",
    "Client": "actorgrid.client.client",
    "LocalCluster": "actorgrid.client.local_cluster",
    "connect": "actorgrid.client.client",
    "task": "actorgrid.client.task",
}
__all__ = ["ActorGridError", "AsyncClient", "Client", "LocalCluster", "__version__", "connect", "task"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
