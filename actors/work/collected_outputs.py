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
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from actorgrid.actors.files.untrusted_files import open_below, open_to_write, remove_tree
from actorgrid.errors import NotARegularFile
from actorgrid.output_paths import OUTPUT_FILES_MAX, OUTPUT_PATH_BYTES_MAX, inside
from actorgrid.working_dir import leads_out

from .attempt_dir import AttemptDir
from .isolation.work_folder import FOLDER, LISTED, READ, WorkFolder, covered_places, rights_of
from .work_records import KeptOutputs, WorkSpec

COPY_BYTES = 1 << 20
PAGE_BYTES = 256 * 1024
"""Of the paths in one page of a listing: it has to fit into one answer between hosts."""
ENTRY_BYTES = 64
"""What an entry of a listing takes beside its path."""
TEXT_MAX = 1000
ENTRIES_MAX = 2 * OUTPUT_FILES_MAX
"""Files, folders and links together."""
DEPTH_MAX = 200
"""Each folder on the way is held open."""
CHANGED = "it changed while it was collected"
HOPS_MAX = 40
"""Links on one way, as the kernel follows."""
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


class _Refused(Exception):
    """This output is not taken, and why; others may be."""


class OutputSource(NamedTuple):
    """Where outputs are taken from, and as whose."""

    folder: WorkFolder
    """The directory in which the work ran."""
    elsewhere: Mapping[str, Path] = NOWHERE_ELSE
    """Where those of them are that do not lie below it: in folders of the attempt's."""
    moves: bool = False
    """Whether nobody needs them there any more."""
    has_ours: bool = False
    """Whether files there are second names of the agent's, which are for all to read."""


class _Copy:
    """Copies into one folder, counting.

    Others may change what is copied, at any time. So each folder on the way is opened by itself, and each file by its
    name in that, not through a link, not waiting, and with the rights of the work at ``full``.
    """

    def __init__(self, source: OutputSource, into: Path, bytes_max: int) -> None:
        self._into = into
        self._bytes_max = bytes_max
        self._moves = source.moves
        self._owner = source.folder.owner
        self._has_ours = source.has_ours
        self._covered = covered_places(source.folder.owner)
        self._entries = 0
        self.files = 0
        self.size_bytes = 0

    def take(self, top: int, wanted: str, path: str) -> None:
        """Keep what lies at *wanted* below *top* as *path*: a file, a link that leads nowhere else, a folder of such.

        Raises FileNotFoundError where there is nothing, _Refused, _TooMuch, OSError.
        """
        with self._folder_of(top, wanted) as (within, name):
            mode = self._facts(within, name).st_mode
            if stat.S_ISLNK(mode) and leads_out(path, self._target(within, name)):
                raise _Refused("it is a link that leads out")
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise _Refused("it is no file, folder or link")
            (self._into / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._entry(within, name, path, 0)

    @contextmanager
    def _folder_of(self, top: int, wanted: str) -> Iterator[tuple[int, str]]:
        """The folder in which it lies, and its name there. Links on the way are followed where they stay inside."""
        if self._owner is None:
            above, name = os.path.split(wanted)
            within = os.open(above or ".", FOLDER, dir_fd=top)
            try:
                yield within, name
            finally:
                os.close(within)
            return
        ahead = wanted.split("/")[::-1]
        held, hops = [top], 0
        try:
            while len(ahead) > 1:
                part = ahead.pop()
                if part in ("", "."):
                    continue
                if part == "..":
                    if len(held) == 1:
                        raise _Refused("it lies behind a link that leads out")
                    os.close(held.pop())
                    continue
                try:
                    target = self._target(held[-1], part)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    with rights_of(self._owner):  # no link, but it may have become one: then it is refused here
                        held.append(os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=held[-1]))
                    self._check_seen(held[-1])
                    continue
                hops += 1
                if target.startswith("/") or hops > HOPS_MAX:
                    raise _Refused("it lies behind a link that leads out")
                ahead += target.split("/")[::-1]
            yield held[-1], ahead[0]
        finally:
            for fd in held[1:]:
                os.close(fd)

    def _facts(self, within: int, name: str) -> os.stat_result:
        with rights_of(self._owner):
            return os.lstat(name, dir_fd=within)

    def _target(self, within: int, name: str) -> str:
        with rights_of(self._owner):
            return os.readlink(name, dir_fd=within)

    def _entry(self, within: int, name: str, path: str, depth: int) -> None:
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise _TooMuch(f"more than {ENTRIES_MAX} files, folders and links")
        if len(path.encode("utf-8", "surrogateescape")) > OUTPUT_PATH_BYTES_MAX or depth > DEPTH_MAX:
            raise _TooMuch(f"a path of more than {OUTPUT_PATH_BYTES_MAX} bytes, or {DEPTH_MAX} folders: {path[:80]}")
        mode, target = self._facts(within, name).st_mode, self._into / path
        if stat.S_ISDIR(mode):
            target.mkdir(mode=0o700, exist_ok=True)
            self._children(within, name, path, depth)
        elif stat.S_ISLNK(mode):
            text = self._target(within, name)
            if not leads_out(path, text):
                target.symlink_to(text)
        elif stat.S_ISREG(mode):
            self._file(within, name, target)

    def _children(self, within: int, name: str, path: str, depth: int) -> None:
        folder = self._opened(within, name, LISTED)
        try:
            self._check_seen(folder)
            with os.scandir(folder) as listed:
                names = sorted(entry.name for entry in islice(listed, ENTRIES_MAX + 1))
            for child in names:
                try:
                    self._entry(folder, child, f"{path}/{child}", depth + 1)
                except FileNotFoundError:
                    raise _Refused(CHANGED) from None
        finally:
            os.close(folder)

    def _check_seen(self, folder: int) -> None:
        """Where the work has something of its own in the place of a folder, what lies there for others is not its."""
        found = os.fstat(folder)
        if (found.st_dev, found.st_ino) in self._covered:
            raise _Refused("it lies in a folder that the work did not see")

    def _opened(self, within: int, name: str, flags: int) -> int:
        try:
            with rights_of(self._owner):
                return os.open(name, flags, dir_fd=within)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):  # of another kind by now
                raise _Refused(CHANGED) from None
            raise

    def _file(self, within: int, name: str, target: Path) -> None:
        self.files += 1
        if self.files > OUTPUT_FILES_MAX:
            raise _TooMuch(f"more than {OUTPUT_FILES_MAX} files")
        if self._moves and self._owner is None:
            self._count(self._facts(within, name).st_size)
            with suppress(OSError):
                os.rename(name, target, src_dir_fd=within)
                return
            self._count(-self._facts(within, name).st_size)
        source = self._opened(within, name, READ)
        try:
            facts = os.fstat(source)
            if not stat.S_ISREG(facts.st_mode):
                raise _Refused(CHANGED)
            # Work cannot read through it what it may not. But it is no output of its, whoever's it is.
            is_ours = self._has_ours and facts.st_uid == os.geteuid()
            if self._owner not in (None, facts.st_uid) and facts.st_nlink > 1 and not is_ours:
                raise _Refused("it is another name of a file that is not the work's")
            self._count(facts.st_size)
            if self._moves and self._moved(within, name, target, facts):
                return
            self._copied(source, target, facts)
        finally:
            os.close(source)

    def _count(self, size: int) -> None:
        if self.size_bytes + size > self._bytes_max:
            raise _TooMuch(f"more than {self._bytes_max} bytes (work.outputs_bytes_max)")
        self.size_bytes += size

    def _moved(self, within: int, name: str, target: Path, facts: os.stat_result) -> bool:
        """Whether the file that was looked at is *target* now. Another that has taken its place is not kept."""
        try:
            os.rename(name, target, src_dir_fd=within)
        except OSError:
            return False
        if not os.path.samestat(os.lstat(target), facts):
            if stat.S_ISDIR(os.lstat(target).st_mode):
                remove_tree(target)
            else:
                target.unlink()
            raise _Refused(CHANGED)
        return True

    def _copied(self, source: int, target: Path, facts: os.stat_result) -> None:
        """Copy as many bytes as it had when it was opened: somebody may go on writing for good."""
        with open(target, "xb") as written:
            left = facts.st_size
            while left and (piece := os.read(source, min(left, COPY_BYTES))):
                written.write(piece)
                left -= len(piece)
            written.flush()
            os.fchmod(written.fileno(), stat.S_IMODE(facts.st_mode) & 0o777)
            os.utime(written.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))
        if left:
            raise _Refused("it became shorter while it was collected")


def collect(source: OutputSource, wanted: list[str], into: Path, bytes_max: int) -> Collected:
    """Keep the *wanted* paths of *source* in *into*, which is made anew.

    What is refused, is too large, or finds no room on the disk, is named as the problem; what else was kept stays.
    """
    remove_tree(into)
    into.mkdir(mode=0o700, parents=True)
    copy, missing, problems = _Copy(source, into, bytes_max), [], list[str]()
    for path in wanted:
        try:
            with _top_of(source, path) as (top, below):
                copy.take(top, below, path)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(path)
        except _TooMuch as error:
            problems.append(f"{path}: {error}")
            break
        except (_Refused, NotARegularFile) as error:
            problems.append(f"{path}: {error}")
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            problems.append(f"{path}: {'the disk is full' if is_full else error.strerror}")
            if is_full:
                break
    return Collected(copy.files, copy.size_bytes, tuple(missing), "; ".join(problems)[:TEXT_MAX])


@contextmanager
def _top_of(source: OutputSource, path: str) -> Iterator[tuple[int, str]]:
    """The folder from which a path leads, and how it goes on there."""
    for name, folder in source.elsewhere.items():
        if path == name or path.startswith(f"{name}/"):
            # Its name in the attempt's folder cannot be given to another by the work; what lies in it can.
            top = os.open(folder.parent if path == name else folder, FOLDER | os.O_NOFOLLOW)
            try:
                yield top, folder.name if path == name else path[len(name) + 1 :]
            finally:
                os.close(top)
            return
    with source.folder.opened() as top:
        yield top, path


def collect_wanted(
    spec: WorkSpec,
    attempt: AttemptDir,
    folder: WorkFolder,
    then: Callable[[WorkSpec, AttemptDir, Collected], Collected] | None,
) -> Collected | None:
    """Keep the outputs that an attempt's spec asks for, if any, and say in its stderr what is not there.

    *folder*: in which it ran. *then* is called with what came of it, before that is said, and gives what is to be said.
    """
    wanted = spec.get("outputs")
    if not wanted:
        return None
    own = bool(spec.get("working_dir"))
    source = OutputSource(folder, _elsewhere(spec), moves=own, has_ours=own)
    collected = collect(source, wanted["paths"], Path(wanted["folder"]), wanted["bytes_max"])
    if then is not None:
        collected = then(spec, attempt, collected)
    said = [f"output {path!r} was not there" for path in collected.missing]
    said += [f"outputs are not whole: {collected.problem}"] if collected.problem else []
    with suppress(OSError, NotARegularFile):
        stderr = open_to_write(attempt.path, attempt.stderr.name, os.O_APPEND)
        os.write(stderr, "".join(f"[actorgrid] {line}\n" for line in said).encode("utf-8", "replace"))
        os.close(stderr)
    return collected


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
