"""The keywords that verbs which send functions take for themselves, for type checkers; and what may stand for a value.

mypy and pyright check a call's arguments against the function by ``ParamSpec`` as long as all keywords are the
function's. With options among them they check the positional arguments and the options. Both at once cannot be said
in types: ``client.options(gpus=1).submit(fn, x, name="Ann")`` is checked in full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from .environment import Environment

Later: TypeAlias = Future[Any] | Collection[Future[Any]] | Mapping[Any, Future[Any]]
"""An argument that stands for a value, or holds some that do. Which they will be is not checked."""


class _Words(TypedDict, total=False):
    gpus: float
    gpu_memory: int | str
    cpus: float
    memory: int | str
    gpu_models: Sequence[str]
    gpu_affinity: Sequence[str]
    gpu_profile: str
    gpu_topology: str
    priority: int
    retries: int | None
    timeout: float | None
    deadline: float | datetime | None
    preemptible: bool
    grace_s: float | None
    max_isolation_s: float | None
    gang: int
    spread: bool
    min_isolation: str
    pool: str | None
    env: Mapping[str, str] | Environment | str | os.PathLike[str] | Sequence[str] | None
    python: str | None
    annotations: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    stop_when_idle_s: float | None
    notify: str | Sequence[str]
    notify_on: str | Sequence[str]
    secrets: Sequence[str]
    name: str | None
    depends_on: Sequence[Any]
    balancing: str | None
    affinity: str
    pure: bool
    outputs: Sequence[str]
    container: str | None
    mounts: Sequence[str]
    container_runtime: str | None


class TaskWords(_Words, total=False):
    """The options of a task: those of TaskOptions, which says what they mean."""

    durable: bool


class JobWords(_Words, total=False):
    """What ``submit`` takes beside ``durable=True`` and the function's own."""

    kwargs: Mapping[str, Any]


class SubmitWords(TaskWords, total=False):
    """What ``submit`` takes beside the function's own."""

    kwargs: Mapping[str, Any]
    """Keyword arguments of the function, not checked: futures may be among them."""


class StreamOwnWords(TypedDict, total=False):
    """What ``stream`` takes beside the function's own, when the options were said before."""

    window: int


class StreamWords(SubmitWords, StreamOwnWords, total=False):
    """What ``stream`` takes beside the function's own."""


class MapOwnWords(TypedDict, total=False):
    """What ``map`` takes beside the function's own, when the options were said before."""

    chunksize: int
    buffersize: int | None
    progress: bool


class MapWords(SubmitWords, MapOwnWords, total=False):
    """What ``map`` takes beside the function's own; its ``timeout`` is how long values are waited for."""
