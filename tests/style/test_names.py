"""One meaning per class name in the whole house: who reads a name needs not ask which of them it is."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actorgrid", "actors", "chaos", "configs", "hotpath", "supervisors", "transports")
GENERATED = ("_pb2", "_pb2_grpc")
"""How files are called that protoc writes: the rules of the house are not for those."""
SHARED = {
    # An answer of the HTTP API and what it shows; the document at /openapi.json has its name.
    "JoinToken",
    "Lock",
    # One of users' values, and one of servers: no page and no module has to do with both.
    "Ref",
    "SettingChanged",
    "TrustedAuthority",
    # The setting, and the class that a plugin registered under it derives from.
    "SchedulingPolicy",
}


CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)


@cache
def homes() -> dict[str, list[str]]:
    """Each public class name with the modules that define it. Names that begin with ``_`` are their module's own."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):  # does not walk the links in actorgrid/
            if path.stem.endswith(GENERATED):
                continue  # names of the gRPC API
            for name in CLASS.findall(path.read_text()):
                if not name.startswith("_"):
                    found[name].append(str(path.relative_to(ROOT)))
    return {name: really(name, paths) if len(paths) > 1 else paths for name, paths in found.items()}


def really(name: str, paths: list[str]) -> list[str]:
    """Of *paths* with a line like the first of a class *name*, those that have the class: the line may be of a text."""
    return [
        path
        for path in dict.fromkeys(paths)
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ClassDef) and node.name == name
    ]


def test_a_class_name_means_one_thing_in_the_whole_house() -> None:
    assert {name: paths for name, paths in homes().items() if len(paths) > 1 and name not in SHARED} == {}


def test_the_exceptions_are_still_some() -> None:
    found = homes()
    assert [name for name in sorted(SHARED) if len(found.get(name, ())) < 2] == []
