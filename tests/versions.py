"""Every CPython of this machine that actorgrid says it runs on: ``make test-versions``, ``python -m tests.versions``.

Alone it lists them. With targets of the Makefile it makes them for each version, one after the other, each in an
environment of its own (the Makefile's PYTHON=...), goes on where one fails, and says at the end how each came out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "/usr/local/bin",
    "/usr/bin",
    "/opt/python/*/bin",
    "~/.pyenv/versions/*/bin",
    "~/.asdf/installs/python/*/bin",
    "~/.local/share/uv/python/*/bin",
    "~/.local/share/mise/installs/python/*/bin",
)
"""Where Pythons lie that PATH does not name, or names by a script that knows the one chosen version alone."""

# The kernels count on the GIL, and a Python without ensurepip makes no environment.
ASK = """
import importlib.util, json, platform, sys, sysconfig
print(json.dumps({
    "version": sys.version_info[:2],
    "full": platform.python_version(),
    "fit": sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "makes_environments": importlib.util.find_spec("ensurepip") is not None,
    "path": sys.executable,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A CPython that was found and answered."""

    path: Path
    version: tuple[int, int]
    full_version: str
    makes_environments: bool
    """Whether it can make virtual environments: some distributions leave that to a package of its own."""

    @property
    def name(self) -> str:
        """Its version as people say it."""
        return f"{self.version[0]}.{self.version[1]}"


def oldest() -> tuple[int, int]:
    """The first version the metadata allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bound = re.fullmatch(r">=(\d+)\.(\d+)", project["requires-python"])
    assert bound, project["requires-python"]
    return int(bound.group(1)), int(bound.group(2))


def candidates() -> Iterator[Path]:
    """What is named like a Python that is new enough, in the order of PATH, then elsewhere; and the one that runs."""
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    for pattern in FOLDERS:
        expanded = Path(pattern).expanduser()
        folders += sorted(Path("/").glob(str(expanded.relative_to("/"))))
    for folder in folders:
        if folder.is_dir():
            named = {path: re.fullmatch(r"python3\.(\d+)", path.name) for path in sorted(folder.iterdir())}
            yield from (path for path, match in named.items() if match and (3, int(match[1])) >= oldest())
    yield Path(sys.executable)


def asked(path: Path) -> Interpreter | None:
    """What it says of itself; None where it does not start (a script without its Python) or is of another kind."""
    try:
        done = subprocess.run([path, "-I", "-c", ASK], capture_output=True, text=True, check=True, timeout=60)
        said = json.loads(done.stdout)
        major, minor = said["version"]
        found = Interpreter(Path(said["path"]), (major, minor), said["full"], said["makes_environments"])
        return found if said["fit"] else None
    except (OSError, subprocess.SubprocessError, ValueError, LookupError):
        return None


@cache
def interpreters() -> tuple[Interpreter, ...]:
    """One of each version from the oldest allowed on: one that makes environments before one that does not, then the
    first in PATH.
    """
    found: dict[tuple[int, int], Interpreter] = {}
    seen: set[Path] = set()
    for path in candidates():
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        new = asked(path)
        if new is None:
            continue
        known = found.get(new.version)
        if known is None or (new.makes_environments and not known.makes_environments):
            found[new.version] = new
    return tuple(found[version] for version in sorted(found))


def main(targets: list[str]) -> int:
    """Gives 0 when every target was made for every version."""
    # What the outer make was told (VENV=...) is not for all versions.
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS"}}
    results: list[tuple[str, bool]] = []
    for python in interpreters():
        if not targets or not python.makes_environments:
            note = "" if python.makes_environments else " (makes no environments: left out)"
            print(f"CPython {python.full_version} at {python.path}{note}", flush=True)
            continue
        for target in targets:
            print(f"== make {target}, CPython {python.full_version}", flush=True)
            began = time.monotonic()
            command = ["make", target, f"PYTHON={python.path}"]
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
            minutes = (time.monotonic() - began) / 60
            fine = done.returncode == 0
            outcome = "passed" if fine else "FAILED"
            results.append((f"{outcome}  {python.full_version:8} make {target:12} {minutes:5.1f} min", fine))
    print(*(line for line, _ in results), sep="\n", end="\n" if results else "")
    return 0 if all(fine for _, fine in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
