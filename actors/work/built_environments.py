"""The Python environments of this host: each built once, by the first work that asks, and kept while there is room.

    FOLDER/DIGEST/, DIGEST.lock    the virtual environment of the spec with that SHA-256, and its lock (held_folders.py)
    FOLDER/DIGEST/READY            written last: what came of it. Without it, it is being built, or was given up
    FOLDER/DIGEST.build            held (flock) while it is built: by one at a time; others wait
    FOLDER/DIGEST.log              what the build says, while it goes on and afterwards
    FOLDER/.cache/                 what uv or pip downloaded and built

Building runs code of the packages, so it is done by the process of the work that asks, contained as all its doings
are. It is built where it stays: the scripts of a virtual environment name its path.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import subprocess  # nosec B404 - runs uv and pip, see environment_tools.py
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from select import POLLIN, poll
from typing import Any, NamedTuple

from actorgrid.actors.files.untrusted_files import remove_tree
from actorgrid.digests import is_digest
from actorgrid.errors import DiskFull, EnvironmentFailed, MalformedBody, TaskCancelled
from actorgrid.python_environment import PythonEnvironment, environment_of_bytes

from .environment_tools import build_steps, build_variables, find_interpreter, find_uv, shown, without_passwords
from .held_folders import HeldFolders

READY = "actorgrid.json"
LOOK_S = 0.2
LAST_LINES = 12
LINE_BYTES_MAX = 8 * 1024
KILL_AFTER_S = 2.0


class BuiltEnvironment(NamedTuple):
    """What came of a spec on this host."""

    python: str
    """The path of its interpreter."""
    version: str
    """The full version of that."""
    folder: str
    """The virtual environment; empty where an interpreter was named that is in none."""

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that make it the one that commands find, put over *env*."""
        before = env.get("PATH", os.defpath)
        set_anew = {"PATH": f"{os.path.dirname(self.python)}{os.pathsep}{before}"}
        if self.folder:
            set_anew["VIRTUAL_ENV"] = self.folder
        return set_anew


class EnvironmentFacts(NamedTuple):
    """One environment that is there, for people."""

    digest: str
    state: str
    """``ready``, ``building``, or ``left``: its build failed or was ended."""
    python: str
    packages: tuple[str, ...]
    size_bytes: int
    used_at: float
    last_line: str
    """Of a build that goes on, or has failed, the last that it said."""


class BuildProgress(NamedTuple):
    """How who waits for a build follows it."""

    say: Callable[[str], None] = lambda _line: None
    """Called with each line that it says."""
    is_wanted: Callable[[], bool] = lambda: True
    """Asked about five times a second; the build is given up when it is not."""


class BuiltEnvironments(HeldFolders):
    """The environments in *folder*: at most *count_max*, and *bytes_max* bytes in all; as much for what was downloaded.

    A build that takes longer than *build_s* is given up.
    """

    def __init__(self, folder: Path, count_max: int, bytes_max: int, build_s: float) -> None:
        super().__init__(folder, "Python environment", count_max, bytes_max)
        self._build_s = build_s

    def found(self, digest: str) -> BuiltEnvironment | None:
        """The environment of that spec, if it is there and its interpreter still is."""
        try:
            facts = json.loads((self.path(digest) / READY).read_text(encoding="utf-8"))
            python, version = str(facts["interpreter"]), str(facts["python"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return BuiltEnvironment(python, version, str(self.path(digest))) if os.access(python, os.X_OK) else None

    def get(
        self, digest: str, spec: Callable[[], bytes], work: Mapping[str, str], progress: BuildProgress
    ) -> BuiltEnvironment:
        """Have it there, built from *spec* if it is not yet. To be held before. *work*: the variables of who asks.

        Raises EnvironmentFailed, MalformedBody, DiskFull, TaskCancelled when it is not wanted any more, OSError.
        """
        wanted = environment_of_bytes(spec())
        if wanted.digest != digest:
            raise MalformedBody("the Python environment is not of that digest", asked=digest, found=wanted.digest)
        if not wanted.to_be_built:
            python, version = find_interpreter(wanted, work.get("PATH", os.defpath))
            return BuiltEnvironment(python, version, _venv_around(python))
        found = self.found(digest)
        if found is not None:
            return found
        with self._building(digest, progress):
            return self.found(digest) or self._built(digest, wanted, work, progress)

    def facts(self) -> list[EnvironmentFacts]:
        """All that are there, those that are being built too; used last first."""
        known = {each.digest: each for each in self.kept()}
        with suppress(FileNotFoundError):
            names = [path.name.removesuffix(".build") for path in self._folder.glob("*.build")]
            digests = dict.fromkeys([*known, *(name for name in names if is_digest(name))])
            found = [self._facts_of(digest, *(known.get(digest) or (0.0, 0))[:2]) for digest in digests]
            return sorted((each for each in found if each is not None), key=lambda each: -each.used_at)
        return []

    def clear(self, digest: str) -> bool:
        """Remove it, with what a build left; ``False`` when it is not there or in use."""
        removed = self.remove(digest)
        if removed:
            for name in (f"{digest}.build", f"{digest}.log"):
                (self._folder / name).unlink(missing_ok=True)
        return removed

    def remove(self, digest: str) -> bool:
        """As of all such folders; its own are writable again first."""
        for folder in (self.path(digest), *self.path(digest).glob("lib/python*/site-packages")):
            with suppress(OSError):
                folder.chmod(0o755)
        return super().remove(digest)

    # -- one build

    def _built(
        self, digest: str, wanted: PythonEnvironment, work: Mapping[str, str], progress: BuildProgress
    ) -> BuiltEnvironment:
        place, began = self.path(digest), time.monotonic()
        remove_tree(place)  # of who was killed while it built: nobody else builds this one now
        self._make_room(0, but=digest)
        search = work.get("PATH", os.defpath)
        interpreter, version = find_interpreter(wanted, search)
        uv = find_uv(search)
        cache = self._folder / ".cache"
        requirements = self._folder / f"{digest}.requirements"
        variables = build_variables(work, cache, uv)
        with (self._folder / f"{digest}.log").open("w", encoding="utf-8") as log:

            def say(line: str) -> None:
                log.write(f"{without_passwords(line)}\n")
                log.flush()
                progress.say(without_passwords(line))

            tool = "uv" if uv is not None else "pip"
            say(f"building environment {digest[:12]} with {tool}, Python {version}")
            try:
                requirements.write_text(wanted.requirements, encoding="utf-8")
                for command in build_steps(wanted, interpreter, place, requirements, uv):
                    left_s = began + self._build_s - time.monotonic()
                    _run(command, variables, say, progress.is_wanted, left_s, self._folder)
                size_bytes = _bytes_of(place)
                self._make_room(size_bytes, but=digest)
                packages = _packages(place)
                facts: dict[str, Any] = {
                    "interpreter": str(place / "bin" / "python"),
                    "python": version,
                    "tool": tool,
                    "packages": packages,
                    "built_s": round(time.monotonic() - began, 3),
                }
                self._finish(digest, size_bytes, facts)
            except OSError as error:
                remove_tree(place)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull("the disk is too full for the Python environment", found=str(error)) from error
                raise
            except BaseException:
                remove_tree(place)
                raise
            finally:
                requirements.unlink(missing_ok=True)
            say(
                f"environment {digest[:12]}: {len(packages)} packages, {size_bytes >> 20} MiB, {facts['built_s']:.1f} s"
            )
        self._bound_cache(cache)
        return BuiltEnvironment(str(facts["interpreter"]), version, str(place))

    def _finish(self, digest: str, size_bytes: int, facts: dict[str, Any]) -> None:
        """Say that it is whole: its size, then the mark. Its packages are of all that use it: nothing is added."""
        place = self.path(digest)
        self._note_size(digest, size_bytes)
        draft = place / f"{READY}.draft"
        draft.write_text(json.dumps(facts), encoding="utf-8")
        draft.rename(place / READY)
        for folder in place.glob("lib/python*/site-packages"):
            folder.chmod(0o555)

    def _bound_cache(self, cache: Path) -> None:
        if _bytes_of(cache) > self._bytes_max:
            remove_tree(cache)  # what environments have of it are links of their own

    @contextmanager
    def _building(self, digest: str, progress: BuildProgress) -> Iterator[None]:
        lock = os.open(self._folder / f"{digest}.build", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            waits = False
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not waits:
                        progress.say(f"waiting for environment {digest[:12]}, which other work here builds")
                    waits = True
                    if not progress.is_wanted():
                        raise TaskCancelled("the environment is not wanted any more") from None
                    time.sleep(LOOK_S)
            yield
        finally:
            os.close(lock)

    def _facts_of(self, digest: str, used_at: float, size_bytes: int) -> EnvironmentFacts | None:
        try:
            said = (self._folder / f"{digest}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        except OSError:
            said = []
        last_line = said[0] if said else ""
        try:
            facts = json.loads((self.path(digest) / READY).read_text(encoding="utf-8"))
            packages = tuple(map(str, facts["packages"]))
            return EnvironmentFacts(digest, "ready", str(facts["python"]), packages, size_bytes, used_at, "")
        except (OSError, ValueError, KeyError, TypeError):
            return EnvironmentFacts(digest, self._state_of(digest), "", (), size_bytes, used_at, last_line)

    def _state_of(self, digest: str) -> str:
        try:
            lock = os.open(self._folder / f"{digest}.build", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return "left"
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "left"
        except BlockingIOError:
            return "building"
        finally:
            os.close(lock)


def _run(
    command: list[str],
    variables: Mapping[str, str],
    say: Callable[[str], None],
    is_wanted: Callable[[], bool],
    limit_s: float,
    folder: Path,
) -> None:
    """Run one step and pass on what it says. Raises EnvironmentFailed, DiskFull, TaskCancelled."""
    until = time.monotonic() + limit_s
    last: deque[str] = deque(maxlen=LAST_LINES)
    process = subprocess.Popen(  # nosec B603 - see environment_tools.build_steps
        command,
        env=dict(variables),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None, "it was asked for"
    pipe, held = process.stdout.fileno(), b""
    watched = poll()
    watched.register(pipe, POLLIN)
    try:
        while True:
            if watched.poll(LOOK_S * 1000):
                piece = os.read(pipe, 65536)
                if not piece:
                    break
                *lines, held = (held + piece).replace(b"\r", b"\n").split(b"\n")
                lines, held = ([*lines, held], b"") if len(held) > LINE_BYTES_MAX else (lines, held)
                for line in lines:
                    text = line[:LINE_BYTES_MAX].decode("utf-8", "replace").rstrip()
                    if text:
                        last.append(text)
                        say(text)
            if not is_wanted():
                raise TaskCancelled("the environment is not wanted any more")
            if time.monotonic() >= until:
                raise EnvironmentFailed(
                    "building the environment took too long",
                    asked=shown(command),
                    found=_words(last),
                    hint="work.environment_build_s says how long it may; build it ahead with a small job",
                )
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_AFTER_S)
            process.kill()
            process.wait()
        process.stdout.close()
    if code:
        said = _words(last)
        if "No space left on device" in said or "Disk quota exceeded" in said:
            raise DiskFull("the disk is too full for the Python environment", asked=shown(command), found=said)
        tool = "pip" if "pip" in command[1:5] and "uv" not in os.path.basename(command[0]) else command[0]
        raise EnvironmentFailed(
            f"the environment cannot be built: {os.path.basename(tool)} ended with status {code}",
            asked=shown(command),
            found=said,
            hint="try the requirements here: uv pip install --dry-run -r FILE; packages must be on an index "
            "(or folder) that the hosts reach",
        )


def _words(lines: deque[str]) -> str:
    """What matters of them, for an error."""
    told = [line for line in lines if not line.startswith(("Looking in ", "WARNING: Location "))]
    return without_passwords("\n".join(told))[-3000:]


def _bytes_of(folder: Path) -> int:
    """The bytes of all files below it."""
    total, waiting = 0, [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as listed:
            for entry in listed:
                with suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(facts.st_mode):
                        waiting.append(entry.path)
                    elif stat.S_ISREG(facts.st_mode):
                        total += facts.st_size
    return total


def _packages(place: Path) -> list[str]:
    """The distributions that are installed there, as ``name==version``."""
    found = [path.name.removesuffix(".dist-info") for path in place.glob("lib/python*/site-packages/*.dist-info")]
    return sorted("==".join(name.rsplit("-", 1)) for name in found)


def _venv_around(python: str) -> str:
    """The virtual environment whose interpreter that is; empty where it is of none."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    return folder if os.path.exists(os.path.join(folder, "pyvenv.cfg")) else ""
