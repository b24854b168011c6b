"""Whether a key and its namespace may grow."""

from __future__ import annotations

import os
from pathlib import Path

from actorgrid.configs.schema import Settings
from actorgrid.errors import BadRequest, DiskFull, NamespaceFull

from .crdt import Crdt
from .journal import storage_error
from .messages import Mutate
from .namespaces import CLUSTER, DEFAULT, namespace_of
from .store import States
from .types import ORMap, ORSet
from .view import StateView, size_of

MAX_KEY_STATE_BYTES = 4 * 2**20
"""One key's state, encoded, since its value is sent whole to readers and watchers."""
MAX_SHOWN_ELEMENTS = 10_000
"""Elements of a set, fields of a map: tighter than the types' own limit, for the same reason."""
MEASURE_S = 5.0
"""Between two measurements of a namespace that seems full."""


class Growth:
    """Checks by what the view has measured. Where that says full, it is measured anew, as it may have shrunk."""

    def __init__(self, settings: Settings, states: States, view: StateView) -> None:
        self._settings = settings
        self._states = states
        self._view = view
        self._measured_s: dict[str, float] = {}

    def check(self, asked: Mutate, kinds: dict[str, Crdt], more_bytes: int, more_keys: int, now_s: float) -> None:
        """For a mutation of a key with these states, and so much more of its namespace in all, at least.

        Raises BadRequest for the key, NamespaceFull.
        """
        self._check_namespace(asked.key, more_bytes, more_keys, now_s)
        state = kinds.get(asked.type)
        if isinstance(state, (ORSet, ORMap)) and len(state) >= MAX_SHOWN_ELEMENTS:
            known = asked.field in state if isinstance(state, ORMap) else asked.value in state
            if not known:
                raise BadRequest(f"the {state.kind} is full", found=f"{len(state)} elements", hint="use several keys")
        usage = self._view.usage
        if kinds and usage.size(asked.key) > MAX_KEY_STATE_BYTES:
            size = size_of(kinds)
            usage.set(asked.key, size)
            if size > MAX_KEY_STATE_BYTES:
                raise BadRequest(
                    f"{asked.key!r} is full", found=f"{MAX_KEY_STATE_BYTES // 2**20} MiB", hint="use several keys"
                )

    def _check_namespace(self, key: str, more_bytes: int, more_keys: int, now_s: float) -> None:
        space = namespace_of(key)
        if space in (DEFAULT, CLUSTER):
            return
        limits, usage = self._settings.state, self._view.usage
        keys, size = usage.of(space)
        if size + more_bytes > limits.namespace_bytes and self._may_measure(space, now_s):
            usage.measure(space, lambda name: size_of(self._states.get(name, {})))
            keys, size = usage.of(space)
        if size + more_bytes > limits.namespace_bytes:
            raise NamespaceFull(
                f"the namespace {space!r} is full",
                asked=f"{more_bytes} bytes more",
                found=f"{size} of {limits.namespace_bytes} bytes",
                hint="delete keys, or raise state.namespace_bytes",
            )
        if keys + max(0, more_keys - 1) >= limits.namespace_keys and not self._view.has(key):
            raise NamespaceFull(
                f"the namespace {space!r} is full",
                asked="one key more",
                found=f"{keys} of {limits.namespace_keys} keys",
                hint="delete keys, use fields of an or_map, or raise state.namespace_keys",
            )

    def _may_measure(self, space: str, now_s: float) -> bool:
        recent = {name: at_s for name, at_s in self._measured_s.items() if now_s - at_s < MEASURE_S}
        self._measured_s = {**recent, space: recent.get(space, now_s)}
        return space not in recent


def check_disk(directory: Path, least_bytes: int) -> None:
    """Raises DiskFull where less than that is free."""
    try:
        free = os.statvfs(directory)
    except OSError as error:
        raise storage_error(error, "cannot see how full the data directory's disk is") from error
    if free.f_bavail * free.f_frsize < least_bytes:
        raise DiskFull(
            "the data directory's disk is nearly full: the shared state takes nothing new",
            found=f"{free.f_bavail * free.f_frsize // 2**20} MiB free, {least_bytes // 2**20} MiB must stay free",
            hint="free space, or lower performance.min_free_bytes; what is stored is kept",
        )
