"""With what a Python environment is built: which interpreter, uv or pip, and which indexes they go by.

uv is taken where it is installed (beside the agent, or on PATH): it is faster, and links what several environments
have in common. Else the interpreter's own ``venv`` and pip do it. Both read the same requirements file.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess  # nosec B404 - runs interpreters, uv and pip with fixed command lines
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from actorgrid.errors import EnvironmentFailed
from actorgrid.python_environment import PYTHON_OLDEST, PythonEnvironment

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
ASK = "import sys, platform; print(sys.implementation.name, platform.python_version(), sys.executable)"
ASK_S = 60.0
_OWN_INDEX = re.compile(
    r"^\s*(-i\b|-f\b|--index-url|--extra-index-url|--find-links|--no-index|--default-index|--index\b)", re.MULTILINE
)
_OPTIONS = {"index-url": "--index-url", "extra-index-url": "--extra-index-url", "find-links": "--find-links"}


def find_uv(path: str) -> str | None:
    """The uv that is installed beside this program, else the first of that search *path*."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv", path=path)


def find_interpreter(wanted: PythonEnvironment, path: str) -> tuple[str, str]:
    """An interpreter as *wanted* says, and its full version; of a virtual environment the one that it was made from.

    *path*: the search path. Raises EnvironmentFailed with those that were found.
    """
    if wanted.is_path:
        said = _asked(wanted.python)
        if said is None:
            raise EnvironmentFailed(
                "there is no CPython at that path on this host",
                asked=wanted.python,
                hint="name one that is there on every host, or a version: python='3.12'",
            )
        return wanted.python, _checked(said[0], wanted.python)
    own = getattr(sys, "_base_executable", None) or sys.executable
    version = ".".join(map(str, sys.version_info[:3]))
    if not wanted.python or version == wanted.python or version.startswith(f"{wanted.python}."):
        return own, version
    others: set[str] = set()
    for candidate in _candidates(wanted.python, path):
        said = _asked(candidate)
        if said is None:
            continue
        if said[0] == wanted.python or said[0].startswith(f"{wanted.python}."):
            return said[1], said[0]
        others.add(said[0])
    raise EnvironmentFailed(
        f"this host has no Python {wanted.python}",
        asked=f"python={wanted.python!r}",
        found=f"its own is {version}" + (f"; there are also {', '.join(sorted(others))}" if others else ""),
        hint="install it there (uv python install, a package of the distribution), or ask for another",
    )


def _candidates(version: str, path: str) -> Iterator[str]:
    """What is named like that version, in the order of PATH, then elsewhere. May give the same one twice."""
    folders = [Path(entry) for entry in path.split(os.pathsep) if entry]
    for pattern in FOLDERS:
        expanded = Path(pattern).expanduser()
        folders += sorted(Path("/").glob(str(expanded.relative_to("/"))), reverse=True)
    names = dict.fromkeys((f"python{version}", f"python{'.'.join(version.split('.')[:2])}"))
    for folder in folders:
        for name in names:
            if os.access(folder / name, os.X_OK):
                yield str(folder / name)


def _asked(interpreter: str) -> tuple[str, str] | None:
    """The version of an interpreter and where it lies; ``None`` where it does not start, or is no CPython."""
    try:
        said = subprocess.run(  # nosec B603 - the user's own interpreter, in the user's own work
            [interpreter, "-I", "-c", ASK], capture_output=True, text=True, check=True, timeout=ASK_S
        )
        kind, version, executable = said.stdout.strip().split(" ", 2)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return (version, executable) if kind == "cpython" else None


def _checked(version: str, asked: str) -> str:
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < PYTHON_OLDEST:
        raise EnvironmentFailed(
            "work cannot run in so old a Python",
            asked=asked,
            found=f"Python {version}",
            hint=f"{'.'.join(map(str, PYTHON_OLDEST))} is the oldest",
        )
    return version


def build_steps(
    wanted: PythonEnvironment, interpreter: str, place: Path, requirements: Path, uv: str | None
) -> list[list[str]]:
    """The commands that make the environment at *place*, in their order."""
    python = str(place / "bin" / "python")
    has_packages = bool(wanted.requirements.strip())
    if uv is not None:
        steps = [[uv, "venv", "--quiet", "--no-project", "--python", interpreter, str(place)]]
        if has_packages:
            install = ["--python", python, "--compile-bytecode", "--requirements", str(requirements)]
            steps.append([uv, "pip", "install", "--no-progress", *_of_pip(wanted), *install])
        return steps
    # A pip that is there already installs into an environment that then needs none: to unpack one takes longer than
    # most installations.
    with_pip = next((each for each in (sys.executable, interpreter) if _has_pip(each)), None)
    steps = [[interpreter, "-I", "-m", "venv", *(["--without-pip"] if with_pip else []), str(place)]]
    if has_packages:
        pip = [with_pip, "-I", "-m", "pip", "--python", python] if with_pip else [python, "-I", "-m", "pip"]
        install = ["install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
        steps.append([*pip, *install, "--requirement", str(requirements)])
    return steps


def _has_pip(interpreter: str) -> bool:
    """Whether there is a pip that can be told for which Python it installs (22.3 and later)."""
    ask = "import importlib.metadata as m; print(tuple(map(int, m.version('pip').split('.')[:2])) >= (22, 3))"
    try:
        said = subprocess.run(  # nosec B603 - the user's own interpreter, in the user's own work
            [interpreter, "-I", "-c", ask], capture_output=True, text=True, check=True, timeout=ASK_S
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return said.stdout.strip() == "True"


def build_variables(work: Mapping[str, str], cache: Path, uv: str | None) -> dict[str, str]:
    """The variables of these commands: those of the work, but for what belongs to another environment."""
    kept = {
        name: value
        for name, value in work.items()
        if not name.startswith(("PYTHON", "ACTORGRID_")) and name not in ("VIRTUAL_ENV", "CONDA_PREFIX")
    }
    kept |= {"UV_CACHE_DIR": str(cache), "PIP_CACHE_DIR": str(cache / "pip"), "NO_COLOR": "1"}
    kept.setdefault("UV_PYTHON_DOWNLOADS", "never")
    if uv is not None and _pip_settings():
        # pip looks for the best version in all indexes, and who configured it counts on that; uv takes the first.
        kept.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return kept


def _of_pip(wanted: PythonEnvironment) -> list[str]:
    """What uv is told of pip's configuration on this host, which it does not read: where packages come from.

    Nothing where the requirements say it themselves, or uv is configured by itself.
    """
    if _OWN_INDEX.search(wanted.requirements) or _is_uv_configured():
        return []
    words: list[str] = []
    for name, value in _pip_settings().items():
        if name == "no-index":
            words += ["--no-index"] if value.lower() in ("1", "true", "yes", "on") else []
            continue
        parts = value.split() if name != "index-url" else [value.strip()]
        words += [word for part in parts for word in (_OPTIONS[name], part)]
    return words


def _is_uv_configured() -> bool:
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
    files = (os.path.expanduser("~/.config/uv/uv.toml"), "/etc/uv/uv.toml")  # of a home that we may not enter, maybe
    return any(os.environ.get(name) for name in names) or any(map(os.path.exists, files))


def _pip_settings() -> dict[str, str]:
    """Where pip takes packages from on this host: its files in the order in which it reads them, then its variables."""
    named = os.environ.get("PIP_CONFIG_FILE")
    files = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf"]
    files += [os.path.join(sys.prefix, "pip.conf"), *([named] if named else [])]
    found: dict[str, str] = {}
    for file in files if named != os.devnull else ():
        config = configparser.RawConfigParser()
        try:
            config.read(os.path.expanduser(file), encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            for name in (*_OPTIONS, "no-index"):
                if config.has_option(section, name):
                    found[name] = config.get(section, name)
    for name in (*_OPTIONS, "no-index"):
        value = os.environ.get(f"PIP_{name.replace('-', '_').upper()}")
        if value:
            found[name] = value
    return {name: value for name, value in found.items() if value.strip()}


def shown(command: list[str]) -> str:
    """A command for people, without passwords in URLs."""
    return without_passwords(shlex.join(command))


def without_passwords(text: str) -> str:
    """*text* with what stands before the ``@`` of a URL left out."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1***@", text)
