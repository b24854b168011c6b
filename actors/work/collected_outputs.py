"""The outputs of an attempt: files and folders that its submitter named, kept on the host when it ends.

    ATTEMPT_ID/outputs/    what was collected, by the paths that were named
    ATTEMPT_ID/cwd/        the attempt's own copy of a directory that was sent along, while it runs

The shim collects, when nothing of the work lives any more. What is there then is read by others with care: processes
that ran as the agent's user could have put anything in its place.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from actorgrid.actors.files.untrusted_files import open_below, open_to_write, remove_tree
from actorgrid.errors import NotARegularFile
from actorgrid.output_paths import OUTPUT_FILES_MAX, OUTPUT_PATH_BYTES_MAX, inside
from actorgrid.working_dir import leads_out

from .attempt_dir import AttemptDir
from .work_records import KeptOutputs, WorkSpec

COPY_BYTES = 1 << 20
PAGE_BYTES = 256 * 1024
"""Of the paths in one page of a listing: it has to fit into one answer between hosts."""
ENTRY_BYTES = 64
"""What an entry of a listing takes beside its path."""
TEXT_MAX = 1000
NOWHERE_ELSE: Mapping[str, Path] = {}


class Collected(NamedTuple):
    """What came of collecting."""

    files: int
    size_bytes: int
    missing: tuple[str, ...]
    """Those that were named and not there."""
    problem: str
    """Why not all that was there is kept; empty: it is."""
    digest: str = ""
    """Of a step of a graph: that of the pack that it gives."""

    def to_plain(self) -> KeptOutputs:
        """The fields, for the attempt's status, whose room is bounded."""
        missing = "\n".join(self.missing)[:TEXT_MAX].split("\n") if self.missing else []
        kept: KeptOutputs = {"files": self.files, "bytes": self.size_bytes, "missing": missing, "problem": ""}
        kept["problem"] = self.problem[:TEXT_MAX]
        if self.digest:
            kept["digest"] = self.digest
        return kept


class OutputEntry(NamedTuple):
    """One file of a listing."""

    path: str
    size_bytes: int
    modified_at: float
    executable: bool


class _TooMuch(Exception):
    """The bound of files or bytes is reached."""


class _Copy:
    """Copies into one folder, counting."""

    def __init__(self, into: Path, bytes_max: int, moves: bool) -> None:
        self._into = into
        self._bytes_max = bytes_max
        self._moves = moves
        self.files = 0
        self.size_bytes = 0

    def take(self, source: Path, path: str) -> None:
        """Keep *source* as *path*: a file, a link that leads nowhere else, or a folder of such. Others are left out."""
        mode = source.lstat().st_mode
        target = self._into / path
        if len(path.encode("utf-8", "surrogateescape")) > OUTPUT_PATH_BYTES_MAX:
            raise _TooMuch(f"a path of more than {OUTPUT_PATH_BYTES_MAX} bytes: {path[:80]}")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_ISDIR(mode):
            target.mkdir(mode=0o700, exist_ok=True)
            for child in sorted(os.listdir(source)):
                self.take(source / child, f"{path}/{child}")
        elif stat.S_ISLNK(mode):
            if not leads_out(path, os.readlink(source)):
                target.symlink_to(os.readlink(source))
        elif stat.S_ISREG(mode):
            self._file(source, target)

    def _file(self, source: Path, target: Path) -> None:
        self.files += 1
        size = source.lstat().st_size
        if self.files > OUTPUT_FILES_MAX:
            raise _TooMuch(f"more than {OUTPUT_FILES_MAX} files")
        if self.size_bytes + size > self._bytes_max:
            raise _TooMuch(f"more than {self._bytes_max} bytes (work.outputs_bytes_max)")
        if self._moves:
            with suppress(OSError):
                os.rename(source, target)
                self.size_bytes += size
                return
        with open(source, "rb") as read, open(target, "xb") as written:
            shutil.copyfileobj(read, written, COPY_BYTES)
        shutil.copystat(source, target)
        self.size_bytes += size


def collect(
    cwd: str,
    wanted: list[str],
    into: Path,
    bytes_max: int,
    *,
    moves: bool = False,
    elsewhere: Mapping[str, Path] = NOWHERE_ELSE,
) -> Collected:
    """Keep the *wanted* paths of *cwd* in *into*, which is made anew. *moves*: *cwd* is of nobody else. *elsewhere*:
    where those of them are that do not lie below *cwd*.

    What is too large, or finds no room on the disk, is named as the problem; what was kept until then stays.
    """
    remove_tree(into)
    into.mkdir(mode=0o700, parents=True)
    copy, missing, problem = _Copy(into, bytes_max, moves), [], ""
    for path in wanted:
        source = _source(cwd, path, elsewhere)
        try:
            copy.take(source, path)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.lexists(source):
                missing.append(path)
            else:
                problem = problem or f"{path}: it changed while it was collected"
        except _TooMuch as error:
            problem = f"{path}: {error}"
            break
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            problem = f"{path}: {'the disk is full' if full else error.strerror}"
            break
    return Collected(copy.files, copy.size_bytes, tuple(missing), problem)


def collect_wanted(
    spec: WorkSpec, attempt: AttemptDir, then: Callable[[WorkSpec, AttemptDir, Collected], Collected] | None
) -> Collected | None:
    """Keep the outputs that an attempt's spec asks for, if any, and say in its stderr what is not there.

    *then* is called with what came of it, before that is said, and gives what is to be said.
    """
    wanted = spec.get("outputs")
    if not wanted:
        return None
    own = bool(spec.get("working_dir"))
    collected = collect(
        spec["cwd"], wanted["paths"], Path(wanted["folder"]), wanted["bytes_max"], moves=own, elsewhere=_elsewhere(spec)
    )
    if then is not None:
        collected = then(spec, attempt, collected)
    said = [f"output {path!r} was not there" for path in collected.missing]
    said += [f"outputs are not whole: {collected.problem}"] if collected.problem else []
    with suppress(OSError, NotARegularFile):
        stderr = open_to_write(attempt.path, attempt.stderr.name, os.O_APPEND)
        os.write(stderr, "".join(f"[actorgrid] {line}\n" for line in said).encode("utf-8", "replace"))
        os.close(stderr)
    return collected


def _source(cwd: str, path: str, elsewhere: Mapping[str, Path]) -> Path:
    for name, folder in elsewhere.items():
        if path == name or path.startswith(f"{name}/"):
            return folder / path[len(name) + 1 :]
    return Path(cwd) / path


def _elsewhere(spec: WorkSpec) -> dict[str, Path]:
    """The directory that follows the job lies elsewhere, and a link leads there: it may be an output all the same."""
    checkpoint = spec.get("checkpoint")
    if not checkpoint or not checkpoint["folder"]:
        return {}
    return {os.path.relpath(checkpoint["link"], spec["cwd"]): Path(checkpoint["folder"])}


def link_tree(source: Path, target: Path, *, link: bool = True) -> None:
    """Make *target* a copy of the folder *source* by links to its files, which are read-only. Raises OSError.

    *link*: else its files are copied.
    """
    target.mkdir(mode=0o700)
    for at, folders, names in os.walk(source):
        here = target / os.path.relpath(at, source)
        for name in folders:
            inner = Path(at) / name
            if inner.is_symlink():
                (here / name).symlink_to(os.readlink(inner))
            else:
                (here / name).mkdir(mode=0o755)
        for name in names:
            file = Path(at) / name
            if file.is_symlink():
                (here / name).symlink_to(os.readlink(file))
                continue
            try:
                if not link:
                    raise OSError("a copy is wanted")
                os.link(file, here / name)
            except OSError:  # another file system, or one that has no links
                shutil.copy2(file, here / name)


def listing(folder: Path, behind: str = "") -> tuple[list[OutputEntry], str]:
    """A page of the files below *folder*, in the order of their paths, and the path to go on *behind* (empty: the end).

    Links are left out, as is what changes meanwhile.
    """
    found: list[OutputEntry] = []
    room = PAGE_BYTES
    for path, facts in _walk(folder, "", behind):
        if path <= behind:
            continue
        room -= len(path.encode("utf-8", "surrogateescape")) + ENTRY_BYTES
        if room < 0:
            return found, found[-1].path
        found.append(OutputEntry(path, facts.st_size, facts.st_mtime, bool(facts.st_mode & 0o100)))
    return found, ""


def _walk(folder: Path, under: str, behind: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(folder / under) as listed:
            children = {child.name: child for child in listed}
    except OSError:
        return
    # Folders are sorted as with their slash, so that all paths come in order.
    for name in sorted(children, key=lambda each: f"{each}/" if children[each].is_dir(follow_symlinks=False) else each):
        child, path = children[name], f"{under}/{name}" if under else name
        with suppress(OSError, UnicodeEncodeError):
            path.encode()
            if child.is_dir(follow_symlinks=False):
                if f"{path}0" > behind:  # "0" follows "/": nothing below comes later
                    yield from _walk(folder, path, behind)
            elif child.is_file(follow_symlinks=False):
                yield path, child.stat(follow_symlinks=False)


def read_output(folder: Path, path: str, offset: int, size: int) -> tuple[bytes, int] | None:
    """A piece of the file *path* below *folder* and the file's size; ``None`` when there is no such file."""
    plain = inside(path)
    if plain is None:
        return None
    try:
        with open_below(folder, plain.split("/")) as descriptor:
            return os.pread(descriptor, size, offset), os.fstat(descriptor).st_size
    except (FileNotFoundError, NotADirectoryError, NotARegularFile):
        return None


def bound_outputs(attempts_dir: Path, bytes_max: int, sizes: dict[str, int]) -> list[str]:
    """Remove the outputs of the attempts that ended longest ago until all together are within *bytes_max*.

    *sizes*: of each attempt that has some, in the order of their ends, first ones first. Gives whose were removed.
    """
    total, removed = sum(sizes.values()), []
    for attempt_id, size in sizes.items():
        if total <= bytes_max:
            break
        remove_tree(attempts_dir / attempt_id / "outputs")
        removed.append(attempt_id)
        total -= size
    return removed
