"""How much of the shared state each namespace takes, and each prefix: what limits and ``state top`` go by."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .messages import NamespaceSize, PrefixSize
from .namespaces import namespace_of


class Usage:
    """Sizes by key and by namespace. A key's size is the state's when it was last measured, and the deltas since."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def size(self, key: str) -> int:
        """About how large a key's state is, and rather less than that."""
        return self._sizes.get(key, 0)

    def set(self, key: str, size: int) -> None:
        """The key is there, of that size."""
        space = namespace_of(key)
        if key not in self._sizes:
            self._keys[space] = self._keys.get(space, 0) + 1
        self._bytes[space] = self._bytes.get(space, 0) + size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def drop(self, key: str) -> None:
        """The key is gone."""
        size = self._sizes.pop(key, None)
        if size is None:
            return
        space = namespace_of(key)
        self._keys[space] -= 1
        self._bytes[space] -= size
        if not self._keys[space]:
            del self._keys[space], self._bytes[space]

    def of(self, namespace: str) -> tuple[int, int]:
        """Keys and bytes of a namespace."""
        return self._keys.get(namespace, 0), self._bytes.get(namespace, 0)

    def measure(self, namespace: str, size_of: Callable[[str], int]) -> None:
        """Measure the keys of one namespace anew."""
        for key in [key for key in self._sizes if namespace_of(key) == namespace]:
            self.set(key, size_of(key))

    def namespaces(self, rows_max: int) -> list[NamespaceSize]:
        """The largest namespaces."""
        rows = [NamespaceSize(namespace=name, keys=self._keys[name], bytes=self._bytes[name]) for name in self._keys]
        return sorted(rows, key=lambda row: (-row["bytes"], row["namespace"]))[:rows_max]

    def prefixes(self, keys: Iterable[str], depth: int, rows_max: int) -> list[PrefixSize]:
        """The largest prefixes of so many parts, of these keys."""
        found: dict[str, PrefixSize] = {}
        for key in keys:
            parts = key.split("/")
            prefix = "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")
            row = found.setdefault(prefix, PrefixSize(prefix=prefix, keys=0, bytes=0))
            row["keys"] += 1
            row["bytes"] += self.size(key)
        return sorted(found.values(), key=lambda row: (-row["bytes"], row["prefix"]))[:rows_max]
