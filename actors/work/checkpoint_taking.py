"""The shim's part in checkpoints: it watches the directory that follows the job, and has it packed when it is due.

It is due when the work has put the mark there (``READY_MARK``), at each interval if the job asked for one, and once
more when the work has ended without success. Packing is done by a child, so that the shim goes on, and hears what it
is told also while the last one is packed. What is whole waits in the attempt's folder (checkpoint_spool.py).
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from actorgrid.actors.files.untrusted_files import open_to_write, remove_tree
from actorgrid.checkpoints import READY_MARK
from actorgrid.errors import ActorGridError, NotARegularFile

from .attempt_dir import AttemptDir
from .checkpoint_link import unlink_checkpoint
from .checkpoint_packing import ChangedMeanwhile, DirectoryListing, list_directory, pack
from .checkpoint_spool import DIGEST_HEX, begun_with, drop_draft, leave, remove, told
from .isolation.work_folder import LISTED, WorkFolder, rights_of
from .linux import close_all_but, die_with_parent
from .process_tree import own_rss_bytes, send
from .work_records import CheckpointSpec, WorkSpec

LOOK_S = 0.2
CHANGING_MAX = 20
"""How often what changes while it is packed is tried again; then it is said, and the next time is waited for."""
SETTLE_NS = 50_000_000
"""A file that was modified less than so long ago may be modified again without bearing another time."""
FULL_AGAIN_S = 1.0
FULL_PATIENCE_S = 60.0
"""For how long the last one is tried again on a full disk."""
_TAKEN, _UNCHANGED, _CHANGING, _FAILED, _FULL = 0, 10, 11, 12, 13


def taker_of(spec: WorkSpec, directory: AttemptDir, cwd: WorkFolder) -> CheckpointTaker | None:
    """The taker of an attempt that runs in *cwd*; ``None`` of one that asks for no directory, or whose others take."""
    wish = spec.get("checkpoint")
    if wish is None or not wish["takes"] or not wish["folder"]:
        return None
    return CheckpointTaker(wish, directory.path, directory.stderr.name, cwd)


class CheckpointTaker:
    """Of one attempt. *folder*: the attempt's; *cwd*: that in which it runs."""

    def __init__(self, spec: CheckpointSpec, folder: Path, stderr_name: str, cwd: WorkFolder) -> None:
        self._spec = spec
        self._folder = folder
        self._stderr_name = stderr_name
        self._cwd = cwd
        self._owner = cwd.owner
        self._shim_pid = os.getpid()
        self._directory = Path(spec["folder"])
        self._number = 0
        self._last = ""  # the digest of the listing of the last one, or of what it began with
        self._has_begun = False
        self._last_number = 0
        self._heard_of = 0  # the last one that is known to be kept, or not
        self._is_owed = False  # what lay there when it was due is in none that counts
        self._mark: tuple[int, int] | None = None
        self._mark_due: tuple[int, int] | None = None
        self._look_at = 0.0
        self._next_at = time.monotonic() + (spec["every_s"] or float("inf"))
        self._changing = 0
        self._packer = 0
        self._said = -1
        self._code = _UNCHANGED  # what came of the one before
        self._may_go = False
        self._is_last = False  # nothing of the work lives any more
        self._is_wanted = True

    @property
    def packer_rss_bytes(self) -> int:
        """The memory of the child that packs: it is not the work's."""
        return own_rss_bytes(self._packer) if self._packer else 0

    def wait_s(self, now: float) -> float:
        """For how long nothing is to be done."""
        return max(0.0, self._look_at - now)

    def turn(self, now: float) -> None:
        """Begin to pack what is due."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self._packer or not self._directory.is_dir():  # it comes as a whole, once it is unpacked
            return
        if self._heard_of < self._last_number:
            self._hear()
        mark = self._read_mark()
        if mark is not None and mark != self._mark:
            self._mark_due = mark
            self._begin()
        elif now >= self._next_at:
            self._begin()

    def child_ended(self, pid: int, status: int) -> bool:
        """Take the end of a child of the shim; ``False`` when it is not one of these."""
        if not self._packer or pid != self._packer:
            return False
        self._packer = 0
        said = b""
        with suppress(OSError):
            said = os.read(self._said, DIGEST_HEX)
        os.close(self._said)
        self._note(os.waitstatus_to_exitcode(status), said.decode("ascii", "replace"))
        return True

    def last(self, has_succeeded: bool, goes_on: Callable[[], bool]) -> None:
        """Take what lies there at the end, of work that is to go on. Nothing of it lives any more.

        *goes_on* hears for a little while what the shim is told (``is_last_heard``), hands on its children that ended
        (``child_ended``), and says whether the attempt still counts: it is asked until this one is packed. On a full
        disk it is tried again each second, for a minute.
        """
        self._is_last = True
        self._end_packer()
        self._hear()
        mark = self._read_mark()
        is_due = self._spec["every_s"] or self._is_owed or (mark is not None and mark != self._mark)
        self._may_go = True
        if not has_succeeded and is_due and self._directory.is_dir():
            self._may_go = self._pack_last(goes_on)
        unlink_checkpoint(self._spec, self._cwd)

    def _pack_last(self, goes_on: Callable[[], bool]) -> bool:
        """Whether nothing is lost with the directory: it is packed, or not wanted."""
        until = time.monotonic() + FULL_PATIENCE_S
        again_at = 0.0
        while True:
            now = time.monotonic()
            if not self._packer and now >= again_at:
                self._begin()
            if not goes_on() or not self._is_wanted:
                self._end_packer()
                return not self._is_wanted
            if self._packer or now < again_at:
                continue
            if self._code != _FULL or now >= until:
                return self._code in (_TAKEN, _UNCHANGED)
            again_at = now + FULL_AGAIN_S

    def is_last_heard(self, reason: str) -> bool:
        """Whether only the last one is still under way when the work is to stop, which goes on unless it is cancelled:
        then nobody goes on from it."""
        self._is_wanted = self._is_wanted and not (self._is_last and reason == "cancelled")
        return self._is_last

    def _end_packer(self) -> None:
        if self._packer:
            send(self._packer, signal.SIGKILL)
            _, status = os.waitpid(self._packer, 0)
            self.child_ended(self._packer, status)
            drop_draft(self._folder)

    def clear(self) -> None:
        """Remove the directory once nothing of it is needed any more; what could not be packed stays, for people."""
        if self._may_go:
            remove_tree(self._directory)

    def _read_mark(self) -> tuple[int, int] | None:
        """Which mark is there: another one each time it is written."""
        try:
            facts = os.lstat(self._directory / READY_MARK)
        except OSError:
            return None
        return (facts.st_ino, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else None

    def _hear(self) -> None:
        """Hear what became of the last one: when it was refused, as by a full disk, it is to be taken again."""
        answer = told(self._folder)
        if answer is None:
            return
        self._heard_of = max(self._heard_of, answer.number)
        if answer.error is not None and 0 < self._last_number <= answer.number:
            self._last, self._last_number, self._is_owed = "", 0, True
            remove(self._folder, answer.number)  # where it is there still, it takes room that there is not
            self._say(f"number {answer.number} is not kept: {answer.error.get('message', '')}")

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun, self._last = True, begun_with(self._folder)
        self._hear()
        self._shim_pid = os.getpid()
        self._number += 1  # whatever comes of it: a file of that number may be left though its packer is killed
        self._said, say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._packer = os.fork()
        if self._packer:
            os.close(say)
            return
        code = _FAILED
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(self._shim_pid)
            close_all_but([0, 1, 2, say])
            os.nice(5)
            code, digest = self._take()
            os.write(say, digest.encode())
        finally:
            os._exit(code)

    def _take(self) -> tuple[int, str]:
        """Pack the directory unless it is as it was; what came of it, and the digest of the listing."""
        try:
            top = os.open(self._directory, LISTED)
            listing = self._listing(top)
            if listing.newest_ns > time.time_ns() - SETTLE_NS:
                time.sleep(SETTLE_NS / 1e9)
                listing = self._listing(top)
            if listing.digest == self._last:
                return _UNCHANGED, listing.digest
            if not self._spec["every_s"] and listing.newest_ns > (self._read_mark() or (0, 0))[1]:
                # What the mark was written for is not what lies there now.
                raise ChangedMeanwhile("a file there is newer than the mark")
            leave(self._folder, self._number, lambda file: self._pack(top, listing, file))
        except ChangedMeanwhile as error:
            if self._changing + 1 >= CHANGING_MAX:
                self._say(str(error))
            return _CHANGING, ""
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                if self._code != _FULL:
                    self._say("the disk is full")
                return _FULL, ""
            self._say(str(error.strerror))
            return _FAILED, ""
        except (ActorGridError, NotARegularFile) as error:
            self._say(str(error))
            return _FAILED, ""
        if listing.left_out and not self._last:
            self._say(
                f"left out, as only files, folders and links inside of it go along: {', '.join(listing.left_out)}"
            )
        return _TAKEN, listing.digest

    @contextmanager
    def _as_owner(self) -> Iterator[None]:
        """With the rights of the work, in the packer: what lies there can become at any time what that may not read."""
        with rights_of(self._owner):
            die_with_parent(self._shim_pid)  # which is forgotten with each change of uid
            yield
        die_with_parent(self._shim_pid)

    def _listing(self, top: int) -> DirectoryListing:
        with self._as_owner():
            return list_directory(top, self._owner)

    def _pack(self, top: int, listing: DirectoryListing, file: BinaryIO) -> None:
        with self._as_owner():
            pack(top, listing, file, self._owner)

    def _note(self, code: int, digest: str) -> None:
        now = time.monotonic()
        self._code = code
        if code < 0:  # it was killed, with the work as it seems: what it was to take is still due
            self._mark_due = None
            return
        if code == _CHANGING:
            self._changing += 1
            if self._changing < CHANGING_MAX:
                return
        self._changing = 0
        self._mark = self._mark_due or self._mark
        self._mark_due = None
        self._next_at = now + (self._spec["every_s"] or float("inf"))
        self._is_owed = code not in (_TAKEN, _UNCHANGED)
        if code in (_TAKEN, _UNCHANGED):
            self._last = digest
        if code == _TAKEN:
            self._last_number = self._number

    def _say(self, why: str) -> None:
        """Say it where the work's owner looks."""
        with suppress(OSError, NotARegularFile):
            stderr = open_to_write(self._folder, self._stderr_name, os.O_APPEND)
            os.write(stderr, f"[actorgrid] checkpoint: {why}\n"[:1000].encode("utf-8", "replace"))
            os.close(stderr)
