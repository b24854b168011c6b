"""What stands for a module in the digest of a call: its version where it is installed, else what its files say.

Of the user's own that is the module's file and, as deep as they go, those of the user's own modules that its text
imports: a function that is reached through a module is not looked into itself, so whatever it may come to counts. The
user's own is what neither came with the interpreter nor lies in a folder of distributions: so is what PYTHONPATH finds,
and a project that is installed to be edited, whose version stays the same from one edit to the next.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any

from actorgrid.import_environment import SITE_FOLDERS, in_site_folder

_BY_VERSION = frozenset({"actorgrid", "cloudpickle"})


class ModuleDigests:
    """Of the modules that this process has imported; each is looked at once."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def of(self, name: str) -> Any:
        """What stands for the module of that *name*: plain values. Raises OSError where its file cannot be read."""
        if name not in self._found:
            self._found[name] = _files_of(name) if is_users_module(name) else _version_of(name)
        return self._found[name]

    def named(self, names: Iterable[str], scope: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The user's own modules that code with these *names* in that *scope* may reach: those it imports when it is
        called, and what lies in packages that it goes through (``package.module.function``)."""
        package = str(scope.get("__package__") or "")
        names = list(names)
        todo = [*names, *(f"{parent}.{name}" for parent in _with_parents(package) for name in names)]
        todo += [value.__name__ for name in names if isinstance(value := scope.get(name), ModuleType)]
        found: dict[str, Any] = {}
        while todo:
            name = todo.pop()
            if name not in found and is_users_module(name):
                found[name] = self.of(name)
                todo += [f"{name}.{inner}" for inner in names]
        return sorted(found.items())


def is_users_module(name: str) -> bool:
    """Whether an imported module is the user's own."""
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] in _BY_VERSION:
        return False
    file = _place_of(module)
    return bool(file) and not in_site_folder(file)


def _place_of(module: ModuleType) -> str:
    """The file of a module, or the folder of a package without one; empty for what is built in."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        file = next((os.path.join(each, "") for each in getattr(module, "__path__", ()) if isinstance(each, str)), "")
    return os.path.abspath(file) if file else ""


def _files_of(name: str) -> list[tuple[str, bytes]]:
    """The digest of a module's file, and of those that it imports, by their names."""
    found: dict[str, bytes] = {}
    todo = [name]
    while todo:
        each = todo.pop()
        if each in found or not is_users_module(each):
            continue
        place = _place_of(sys.modules[each])
        source = b""
        if not os.path.isdir(place):
            with open(place, "rb") as file:
                source = file.read()
        found[each] = hashlib.sha256(source).digest()
        if place.endswith(".py"):
            todo += _imported_by(source, str(getattr(sys.modules[each], "__package__", None) or ""))
    return sorted(found.items())


def _imported_by(source: bytes, package: str) -> Iterator[str]:
    """The modules that the text of one of *package* may import, anywhere in it, with the packages that they are in."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # it was edited since: its own digest tells it apart
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:
                continue
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> list[str]:
    parts = name.split(".") if name else []
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _version_of(name: str) -> str:
    top = name.partition(".")[0]
    module = sys.modules.get(top)
    said = None if module is None else getattr(module, "__version__", None)
    if said is not None:
        return str(said)
    place = "" if module is None else _place_of(module)
    return _version_of_distribution(top) if any(f"{os.sep}{each}{os.sep}" in place for each in SITE_FOLDERS) else ""


@cache
def _version_of_distribution(top: str) -> str:
    """What the distribution is called, and its version, whose module at the top has this name, and says none itself."""
    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        return " ".join(sorted(f"{each} {metadata.version(each)}" for each in set(_distributions().get(top, ()))))


_distributions = cache(metadata.packages_distributions)
