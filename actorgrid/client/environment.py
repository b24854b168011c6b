"""The Python environment that users ask for: packages by name, from a requirements file or from a lock of uv.

Files are read where they lie, at the first need, and travel as one text; a host builds it once (docs/environments.md).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess  # nosec B404 - runs the user's uv, to read the user's lock
import sys
import threading
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from actorgrid.errors import BadRequest
from actorgrid.python_environment import REQUIREMENTS_BYTES_MAX, PythonEnvironment, python_environment

from .http import AdminHttp

KNOWN_S = 300.0
"""So long a door is taken to have what it had; it keeps a spec that no job names for ten minutes."""
INCLUDES_MAX = 32
EXPORT_S = 60.0
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
Packages = str | os.PathLike[str] | Sequence[str]
_INCLUDE = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)(?:\s+|=)(?P<file>\S+)\s*(?:#.*)?$")
_CONSTRAINT = re.compile(r"^\s*(?:-c\b|--constraint\b)")
_FOLDER = re.compile(r"^\s*(?P<option>-f|--find-links|-i|--index-url|--extra-index-url)(?P<gap>\s+|=)(?P<place>\S+)")
_LOCAL = re.compile(r"^\s*(?:-e\b|--editable\b|\.{0,2}/|\.{1,2}\s*(?:$|\[)|file:)|\s@\s*(?:file:|\.{0,2}/)")


class Environment:
    """A Python environment for work: ``Environment("requirements.txt")``, ``Environment(["numpy>=2", "torch"])``.

    *packages*: the path of a requirements file or of a ``uv.lock``, or a list of requirements. *python*: a version
    (``"3.12"``), or the path of an interpreter that is on the hosts; without it, this program's version for functions,
    and the host's for commands. *variables*: environment variables of the work, as ``env={...}`` says without packages.

    Files are read once, when the first work needs them; what is edited afterwards is of the next Environment.
    """

    def __init__(
        self, packages: Packages = (), *, python: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        self._packages = _plain(packages)
        self.python = str(python)
        self.variables = dict(variables or {})
        self._lock = threading.Lock()
        self._read: str | None = None
        self._known_at: dict[str, float] = {}
        if self.python:
            python_environment(self.python)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Environment) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self._packages, self.python))

    def _key(self) -> tuple[object, ...]:
        return self._packages, self.python, self.variables

    def __repr__(self) -> str:
        asked = f", python={self.python!r}" if self.python else ""
        return f"actorgrid.Environment({self._packages!r}{asked})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self._packages, self.python, self.variables, self._read)

    def after_fork(self) -> None:
        """Go on in a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def spec(self, for_functions: bool = True) -> PythonEnvironment:
        """What is sent of it. Raises BadRequest for a file that cannot be read, or names what does not travel."""
        with self._lock:
            if self._read is None:
                self._read = requirements_text(self._packages)
        return python_environment(self.python or (PYTHON if for_functions else ""), self._read)

    def with_variables(self, variables: Mapping[str, str]) -> Environment:
        """The same with these environment variables."""
        return _rebuilt(self._packages, self.python, dict(variables), self._read)

    def send_to_door(self, http: AdminHttp, for_functions: bool = True) -> str:
        """Have the spec where jobs are accepted; gives its digest. Raises BadRequest, what the door raises."""
        spec = self.spec(for_functions)
        now = time.monotonic()
        if now - self._known_at.get(spec.digest, -KNOWN_S) >= KNOWN_S:
            http.post("/api/environments", spec._asdict(), repeat=True)
            self._known_at[spec.digest] = now
        return spec.digest


def _rebuilt(packages: tuple[str, ...] | str, python: str, variables: dict[str, str], read: str | None) -> Environment:
    environment = Environment(packages, python=python, variables=variables)
    environment._read = read
    return environment


def environment_from(given: object, python: str | None) -> Environment | None:
    """The environment that an option ``env=`` or ``python=`` means; ``None`` where it means variables alone.

    Raises BadRequest for what is neither.
    """
    if isinstance(given, Environment):
        if python and python != given.python:
            return Environment(given._packages, python=python, variables=given.variables)
        return given
    if given is None or isinstance(given, Mapping):
        return Environment((), python=python, variables=given) if python else None
    if isinstance(given, str | os.PathLike):
        return Environment(given, python=python or "")
    if isinstance(given, Iterable):
        return Environment(tuple(given), python=python or "")
    raise BadRequest(
        "env is variables or a Python environment",
        asked=f"env={given!r}"[:200],
        hint='env={"NAME": "value"}, env="requirements.txt", env=["numpy>=2"], or actorgrid.Environment(...)',
    )


def _plain(packages: Packages) -> tuple[str, ...] | str:
    if isinstance(packages, os.PathLike):
        return os.path.abspath(packages)
    if isinstance(packages, str):
        if not packages.strip():
            raise BadRequest("an environment of an empty name", hint='env="requirements.txt", or a list of packages')
        return os.path.abspath(os.path.expanduser(packages))
    found = tuple(packages)
    for each in found:
        if not isinstance(each, str) or "\n" in each or "\0" in each:
            raise BadRequest("a requirement is one line of text", asked=repr(each)[:100], hint='["numpy>=2", "torch"]')
    return found


def requirements_text(packages: tuple[str, ...] | str) -> str:
    """The requirements as one text, with what files include in its place. Raises BadRequest."""
    if isinstance(packages, tuple):
        lines = _checked(packages, Path.cwd(), "the list of packages")
        return "".join(f"{line}\n" for line in lines)
    path = Path(packages)
    if path.is_dir():
        path = next((path / name for name in ("uv.lock", "requirements.txt") if (path / name).exists()), path)
    if path.name == "pyproject.toml":
        path = path.with_name("uv.lock")
    if path.name == "uv.lock":
        return _of_lock(path)
    constraints: list[str] = []
    lines = _of_file(path, [], constraints)
    if constraints:
        lines = [*lines, *_constrained(lines, constraints)]
    return "".join(f"{line}\n" for line in lines)


def _of_file(path: Path, around: list[Path], constraints: list[str]) -> list[str]:
    """The lines of a requirements file, those of the files that it includes in their place."""
    real = Path(os.path.realpath(path))
    if real in around or len(around) >= INCLUDES_MAX:
        raise BadRequest("requirements files include each other", asked=str(path), found=" → ".join(map(str, around)))
    try:
        with path.open("rb") as file:
            data = file.read(REQUIREMENTS_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        hint = (
            ""
            if path.suffix in (".txt", ".in", ".lock", ".toml")
            else 'a package by name goes in a list: env=["numpy"]'
        )
        raise BadRequest(f"the requirements cannot be read: {why}", asked=str(path), hint=hint) from error
    found: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        include = _INCLUDE.match(line)
        if include is None:
            found += _checked([line], path.parent, str(path))
            continue
        inner = _of_file(path.parent / include["file"], [*around, real], constraints)
        if _CONSTRAINT.match(line):
            constraints += inner
        else:
            found += inner
    return found


def _constrained(lines: list[str], constraints: list[str]) -> list[str]:
    """The constraints, of what is required by name; as requirements, they say the same and need no second file.

    Those of packages that come with others cannot be told apart here from what nobody needs.
    """
    named = {_name(line) for line in lines}
    others = sorted({name for line in constraints if (name := _name(line)) and name not in named})
    if others:
        raise BadRequest(
            "a constraint is about a package that is not required by name",
            asked=", ".join(others[:10]),
            hint="write it among the requirements, or lock all of them: uv pip compile, uv lock",
        )
    return [line for line in constraints if _name(line)]


def _name(line: str) -> str:
    found = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line)
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found else ""


def _checked(lines: Iterable[str], folder: Path, where: str) -> list[str]:
    """The lines without comments; folders of packages by their absolute paths. Raises BadRequest for local ones."""
    found: list[str] = []
    for line in lines:
        text = re.sub(r"(^|\s)#.*$", "", line).strip()
        place = _FOLDER.match(text)
        if place is not None and "://" not in place["place"]:
            path = os.path.abspath(folder / os.path.expanduser(place["place"]))
            text = f"{place['option']}{place['gap']}{path}{text[place.end() :]}"
        elif _LOCAL.search(text):
            raise BadRequest(
                "a requirement is a folder or file of this machine",
                asked=f"{text[:200]!r} of {where}",
                hint="send your own code along with working_dir=, or put wheels in a folder that the hosts reach "
                "(--find-links)",
            )
        if text:
            found.append(text)
    return found


def _of_lock(path: Path) -> str:
    """The requirements of a lock of uv: what uv itself exports of it, with its hashes."""
    if not path.exists():
        raise BadRequest("there is no lock of uv", asked=str(path), hint="uv lock makes one")
    uv = _uv()
    if uv is None:
        raise BadRequest(
            "uv is needed to read its lock",
            asked=str(path),
            hint="pip install uv; or where there is one: uv export --frozen > requirements.txt",
        )
    command = [uv, "export", "--frozen", "--quiet", "--no-dev", "--no-emit-workspace", "--no-header", "--no-annotate"]
    try:
        done = subprocess.run(  # nosec B603 - a fixed command line, in the user's project
            command, cwd=path.parent, capture_output=True, text=True, timeout=EXPORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequest(f"uv cannot be run: {error}", asked=str(path)) from error
    if done.returncode:
        raise BadRequest("uv cannot export the lock", asked=str(path), found=done.stderr.strip()[-1000:])
    lines = _checked(done.stdout.replace("\\\n", " ").splitlines(), path.parent, str(path))
    return "".join(f"{line}\n" for line in [*_indexes(path), *lines])


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")


def _indexes(path: Path) -> list[str]:
    """The options for the registries that a lock took its packages from, but for PyPI, which is known."""
    try:
        packages = tomllib.loads(path.read_text(encoding="utf-8")).get("package", [])
    except (OSError, ValueError) as error:
        raise BadRequest(f"the lock of uv cannot be read: {error}", asked=str(path)) from error
    registries = {str((package.get("source") or {}).get("registry") or ""): None for package in packages}
    options: list[str] = []
    for registry in registries:
        if "://" in registry and not registry.rstrip("/").endswith("pypi.org/simple"):
            options.append(f"--extra-index-url {registry}")
        elif registry and "://" not in registry:
            options.append(f"--find-links {os.path.abspath(path.parent / registry)}")
    return options
