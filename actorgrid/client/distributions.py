"""Whether a module belongs to something that was installed, and so is found by its name where that is installed, too.

Installed is what lies in a folder of distributions (site-packages), what a distribution next to it names (``pip install
--target``, ``setup.py develop``), what an editable install names (PEP 610, ``direct_url.json``), wherever its files
are, and what is found by a ``.pth`` file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from actorgrid.import_environment import SITE_FOLDERS, in_site_folder

FOLDERS_MAX = 1024
"""Folders whose distributions are remembered; beyond, all of them are read anew."""


def root_of(name: str, file: str) -> str:
    """The folder in which the import of module *name* began, going by its *file*: an entry of ``sys.path``, mostly.

    Empty where the file does not lie where the name says.
    """
    path, extension = os.path.splitext(os.path.abspath(file))
    if not extension:
        return ""
    parts = name.split(".")
    found = path.split(os.sep)
    if found[-1] == "__init__":
        found.pop()
    else:
        found[-1] = found[-1].partition(".")[0]  # name.cpython-311-x86_64-linux-gnu.so
    if found[-len(parts) :] != parts:
        return ""
    return os.sep.join(found[: -len(parts)]) or os.sep


class _Editable(NamedTuple):
    project: str
    names: frozenset[str]
    """Of its modules at the top; empty where its metadata does not say."""
    name: str


class _SiteFolder(NamedTuple):
    changed_ns: int
    editable: tuple[_Editable, ...]
    paths: frozenset[str]
    """What its ``.pth`` files add to ``sys.path``."""


class Distributions:
    """What is installed, as far as was asked; folders are read once, and again when they have changed."""

    def __init__(self) -> None:
        self._beside: dict[str, tuple[int, frozenset[str]]] = {}
        self._sites: dict[str, _SiteFolder] = {}

    def own(self, name: str, file: str) -> bool:
        """Whether the module *name*, from *file*, belongs to an installed distribution."""
        if in_site_folder(file):
            return True
        root = root_of(name, file)
        top = name.partition(".")[0]
        if root and top in self._named_in(root):
            return True
        sites = [self._site(entry) for entry in sys.path if os.path.basename(entry) in SITE_FOLDERS]
        claimed = False
        for editable in (each for site in sites for each in site.editable):
            if not _is_below(file, editable.project):
                continue
            if top in editable.names or _normal(top) == _normal(editable.name):
                return True
            claimed |= bool(editable.names)
        # Beside an editable project that says what it consists of, what it does not name is the user's own.
        return not claimed and any(root in site.paths for site in sites)

    def _named_in(self, folder: str) -> frozenset[str]:
        """The modules at the top that distributions name whose metadata lies in *folder*."""
        changed_ns = _changed_ns(folder)
        known = self._beside.get(folder)
        if known is not None and known[0] == changed_ns:
            return known[1]
        names: set[str] = set()
        for distribution in metadata.distributions(path=[folder]):
            names.update(_top_names(distribution))
        if len(self._beside) >= FOLDERS_MAX:
            self._beside.clear()
        self._beside[folder] = (changed_ns, frozenset(names))
        return self._beside[folder][1]

    def _site(self, folder: str) -> _SiteFolder:
        changed_ns = _changed_ns(folder)
        known = self._sites.get(folder)
        if known is None or known.changed_ns != changed_ns:
            if len(self._sites) >= FOLDERS_MAX:
                self._sites.clear()
            known = self._sites[folder] = _SiteFolder(changed_ns, tuple(_editables(folder)), frozenset(_paths(folder)))
        return known


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _top_names(distribution: metadata.Distribution) -> set[str]:
    said = set((distribution.read_text("top_level.txt") or "").split())
    if said:
        return said
    names: set[str] = set()
    for file in distribution.files or ():
        first = file.parts[0]
        if len(file.parts) > 1 or first.endswith((".py", ".so")):
            names.add(first.partition(".")[0])
    return names


def _editables(folder: str) -> Iterator[_Editable]:
    """The editable distributions of a folder; only those that have a ``direct_url.json`` are looked into."""
    for entry in _names_in(folder):
        if not entry.endswith(".dist-info"):
            continue
        path = os.path.join(folder, entry, "direct_url.json")
        try:
            with open(path, encoding="utf-8") as file:
                origin = json.load(file)
        except (OSError, ValueError):
            continue
        match origin:
            case {"url": str(url), "dir_info": {"editable": True}} if url.startswith("file://"):
                project = os.path.realpath(unquote(urlsplit(url).path))
                distribution = metadata.Distribution.at(os.path.join(folder, entry))
                names = frozenset((distribution.read_text("top_level.txt") or "").split())
                yield _Editable(project, names, entry.partition("-")[0])


def _paths(folder: str) -> Iterator[str]:
    for entry in _names_in(folder):
        if not entry.endswith(".pth"):
            continue
        try:
            with open(os.path.join(folder, entry), encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                yield os.path.normpath(os.path.join(folder, line.rstrip()))


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_below(file: str, folder: str) -> bool:
    return os.path.realpath(file).startswith(folder + os.sep)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
