"""Which modules travel by value, with the functions that need them, and which by their name.

By name travels what a worker can import: the standard library, what is installed (distributions.py), what PYTHONPATH
finds, this package and the pickler. By value travels the user's own tree: the script, notebook cells, and files that
belong to no distribution, though a worker on the client's machine could import those, too. A worker keeps what it has
imported; by value, what was edited and reloaded in a live session is what runs at the next submit, and a worker on
another host needs no copy. What cannot be pickled by value (a module that holds a lock) goes by name after all, where
the client itself finds it by its name.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any

import cloudpickle

from actorgrid.import_environment import entries_of

from .distributions import Distributions, root_of

_BY_NAME = frozenset({"__main__", "__mp_main__", "actorgrid", "cloudpickle"})


class ModulesByValue:
    """Marks modules in cloudpickle's registry, as they are imported. One for a process."""

    def __init__(self) -> None:
        self._distributions = Distributions()
        self._lock = threading.Lock()
        self._seen = 0
        self._judged: dict[str, str] = {}  # module to the file that was looked at; at most those of sys.modules
        self._by_name: set[str] = set()  # packages that cannot be pickled by value
        self._directory = _directory()
        self._entries = frozenset(entries_of(os.environ.get("PYTHONPATH", ""), self._directory))

    def mark(self) -> None:
        """Mark what was imported since; nothing is looked at while ``sys.modules`` has not grown."""
        if len(sys.modules) == self._seen:
            return
        with self._lock:
            self._seen = len(sys.modules)
            if len(self._judged) > 2 * self._seen:
                self._judged.clear()
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if not isinstance(file, str) or self._judged.get(name) == file:
                    continue
                self._judged[name] = file
                if isinstance(module, types.ModuleType) and self._is_users_own(name, file):
                    cloudpickle.register_pickle_by_value(module)

    def _is_users_own(self, name: str, file: str) -> bool:
        top = name.partition(".")[0]
        if top in _BY_NAME or top in self._by_name or self._distributions.own(name, os.path.abspath(file)):
            return False
        root = root_of(name, file)
        # The script's folder and the working directory stay the user's own tree when PYTHONPATH names them, too.
        return root not in self._entries or root in (self._directory, _script_folder())

    def by_name_instead(self, chain: Iterable[Any]) -> str:
        """Have the package by name whose function, class or module comes last in *chain*; gives its name.

        Empty: none of them is by value, or can be found by name.
        """
        for part in reversed(list(chain)):
            name = _module_name(part)
            top = name.partition(".")[0]
            if name and name in cloudpickle.list_registry_pickle_by_value() and _found_by_name(name):
                with self._lock:
                    self._by_name.add(top)
                    self._unmark(top)
                return top
        return ""

    def by_value_again(self, packages: Iterable[str]) -> None:
        """Take ``by_name_instead`` back: it did not help."""
        with self._lock:
            self._by_name.difference_update(packages)
            for name in [each for each in self._judged if each.partition(".")[0] in packages]:
                del self._judged[name]
            self._seen = 0

    def _unmark(self, top: str) -> None:
        for name in cloudpickle.list_registry_pickle_by_value():
            if name == top or name.startswith(f"{top}."):
                module = sys.modules.get(name)
                if module is not None:
                    cloudpickle.unregister_pickle_by_value(module)


def _module_name(part: Any) -> str:
    if isinstance(part, types.ModuleType):
        return part.__name__
    if isinstance(part, (types.FunctionType, type)):
        return part.__module__ if isinstance(part.__module__, str) else ""
    return ""


def _found_by_name(name: str) -> bool:
    """Whether an import of *name* finds the module where it came from: in an entry of ``sys.path``."""
    file = getattr(sys.modules.get(name), "__file__", None)
    root = root_of(name, file) if isinstance(file, str) else ""
    return bool(root) and any(os.path.abspath(entry) == root for entry in sys.path)


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return os.sep


def _script_folder() -> str:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname(os.path.abspath(file)) if isinstance(file, str) else ""
