"""The folder of one attempt or pool worker on disk, and how its parts are written and read.

ATTEMPT_ID/           0700
  spec.msgpack        what to run; complete before anything starts
  lock                held (a record lock) by the shim for as long as it lives
  started             made once, by the first shim: an attempt never runs twice. Holds shim pid and machine boot id;
                      a second name of the lock's file
  stdout, stderr      bounded; what is dropped is counted in the status. Of a call that a worker serves: once it prints
  stdout.times ...    when what of it came (output_times.py); of a stream that has any output
  status.msgpack      how it ended: see shim.py. Renamed into place; its room is reserved beforehand
  outputs/            files that the job asked to keep (collected_outputs.py)
  cwd/                while it runs, its own copy of a directory that came along, where it asked for outputs
  result.bin          result of a function job (transports/task_frames.py); renamed into place
  home/, tmp/, inputs/, takers/    of work that is kept apart (isolation/own_folders.py)
  credential.json     0600, how clients in it find the agent (credentials.py); gone once the ledger knows the end
  reported            empty; made once the ledger knows the end, of the credential's file

A new file costs some 0.3 ms of CPU on ext4, a second name for one that is there a tenth: so a call that takes less than
a millisecond has no more of them than it needs.

Whoever finds ``started`` without ``status.msgpack`` and the lock free knows that the shim was killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgpack

from actorgrid.actors.files.untrusted_files import (
    open_to_read,
    open_to_write,
    read_whole,
    remove_tree,
    size_of,
    write_all,
)
from actorgrid.configs.fsync import sync_folder
from actorgrid.errors import BadRequest, DiskFull, NotARegularFile

from .output_times import BYTES_MAX as TIMES_BYTES_MAX
from .work_records import WorkSpec, WorkStarted, WorkStatus, spec_of, started_of, status_of

RESERVED_BYTES = 4096
MAX_STATUS_BYTES = 1 << 20
RESULT_FILE_BYTES_MAX = 65 * 2**20
"""The largest value of a function (``work.max_result_bytes`` is at most 64 MiB) with what surrounds it. A result file
that is longer was not written by a worker: a sparse one may seem to hold exabytes."""
"""Of a status: the boot of the machine in which it and the result were written without syncing them. After another
boot neither is what it was."""
TIMES_SUFFIX = ".times"
_NO_LINKS = (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system says that knows no second names."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def write_durably(path: Path, data: bytes) -> None:
    """Replace *path* with *data*, all or nothing, on disk when this returns. Raises OSError."""
    write_whole(path, data, durably=True)
    sync_folder(path.parent)


def write_whole(path: Path, data: bytes, *, durably: bool = False) -> None:
    """Replace *path* with *data*, all or nothing for every reader. Raises OSError.

    Not *durably*, it may be gone with the machine's power.
    """
    temporary = path.with_name(path.name + ".tmp")
    fd = open_to_write(path.parent, temporary.name, os.O_TRUNC)
    try:
        write_all(fd, data)
        if durably:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)


def is_id(name: str) -> bool:
    """Whether *name* can be the id of an attempt or worker, and so of its folder."""
    return _ID.fullmatch(name) is not None


class AttemptDir:
    """The folder of one attempt or worker. Reading never fails for a folder that is not there: it is empty."""

    def __init__(self, parent: Path, attempt_id: str) -> None:
        if not is_id(attempt_id):
            raise BadRequest("not the id of an attempt", asked=attempt_id[:100])
        self.attempt_id = attempt_id
        self.path = parent / attempt_id
        self._at = f"{self.path}{os.sep}"  # joining paths as objects costs more than most of what is done with them

    @property
    def stdout(self) -> Path:
        """The file with the attempt's standard output."""
        return self.path / "stdout"

    @property
    def stderr(self) -> Path:
        """The file with the attempt's standard error."""
        return self.path / "stderr"

    @cached_property
    def result(self) -> Path:
        """The result file of a function job."""
        return self.path / "result.bin"

    @property
    def outputs(self) -> Path:
        """The folder of what the job asked to keep."""
        return self.path / "outputs"

    @property
    def own_cwd(self) -> Path:
        """The attempt's own copy of a directory that came along."""
        return self.path / "cwd"

    @cached_property
    def credential_file(self) -> Path:
        """The file in which clients inside the attempt find the address of this host's API and a credential."""
        return self.path / "credential.json"

    @cached_property
    def status_file(self) -> Path:
        """The file that says how the attempt ended."""
        return self.path / "status.msgpack"

    # -- written by the manager

    def create(self, spec: WorkSpec, *, durably: bool = True) -> None:
        """Make the folder with its spec and reserve the status's room. Raises DiskFull.

        Not *durably*, the spec is whole for every reader, and may be gone with the machine's power; files for output
        are made by whoever has some.
        """
        data = msgpack.packb(spec, use_bin_type=True)
        try:
            if not durably and self._make_new(data):
                return
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._reserve()
            for stream in (self.stdout, self.stderr) if durably else ():
                os.close(open_to_write(self.path, stream.name))
            if durably:
                write_durably(self.path / "spec.msgpack", data)
            else:
                write_whole(self.path / "spec.msgpack", data)
        except OSError as error:
            raise DiskFull(
                f"cannot set up {self.attempt_id}: {error.strerror}", hint="free space in the data directory"
            ) from error

    def _make_new(self, spec: bytes) -> bool:
        """``create`` where there is no such folder: in one that is ours alone nothing has to be guarded against.

        ``False``, with nothing made, when something has its name, or its parent is not there.
        """
        try:
            os.mkdir(self.path, 0o700)
        except (FileExistsError, FileNotFoundError):
            return False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(f"{self._at}status.tmp", flags, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVED_BYTES)
        finally:
            os.close(fd)
        draft = f"{self._at}spec.msgpack.tmp"
        fd = os.open(draft, flags, 0o600)
        try:
            write_all(fd, spec)
        finally:
            os.close(fd)
        os.rename(draft, f"{self._at}spec.msgpack")
        return True

    def _reserve(self) -> None:
        fd = open_to_write(self.path, "status.tmp")
        try:
            os.posix_fallocate(fd, 0, RESERVED_BYTES)
        finally:
            os.close(fd)

    def mark_reported(self) -> None:
        """Note that the ledger knows the end: this folder is only kept for its readers. Its credential is gone then."""
        reported = self.path / "reported"
        with suppress(OSError):
            found = os.lstat(self.credential_file)
            # With another name it would be emptied under that as well.
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                os.truncate(self.credential_file, 0)
                os.rename(self.credential_file, reported)
                return
        try:
            with suppress(IsADirectoryError):
                self.credential_file.unlink(missing_ok=True)
            os.close(open_to_write(self.path, reported.name))
        except (FileNotFoundError, NotARegularFile):
            return  # there is no folder any more, or its work has made a directory of that name

    def remove(self) -> None:
        """Delete the folder and all in it."""
        remove_tree(self.path)

    # -- written by the shim

    def take(self) -> int | None:
        """Become this attempt's only shim: the descriptor that holds the lock, or None if it has had one.

        Never runs twice: a second caller gets None even after the first was killed.
        """
        lock = os.open(f"{self._at}lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(f"{self._at}status.msgpack"):
                raise FileExistsError(self.status_file)
            if not self._note_started(lock):
                raise FileExistsError(self.path / "started")
        except (BlockingIOError, PermissionError, FileExistsError):
            os.close(lock)
            return None
        return lock

    def _note_started(self, lock: int) -> bool:
        """Make the mark that the attempt has begun; ``False`` when it is there. Raises OSError."""
        from .linux import boot_id

        data, started = msgpack.packb({"pid": os.getpid(), "boot_id": boot_id()}), f"{self._at}started"
        if os.path.lexists(started):
            return False  # a second name of the lock's file: what the first one wrote stays
        try:
            # Whole before it has the name. Whoever holds the lock is the only one who writes.
            os.pwrite(lock, data, 0)
            os.ftruncate(lock, len(data))
            os.link(f"{self._at}lock", started, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            fd = os.open(started, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.write(fd, data)
            os.close(fd)
        return True

    def write_status(self, status: WorkStatus, *, durably: bool = True) -> WorkStatus:
        """Write how it ended into the reserved room, then give it its name; gives what was written. Raises OSError.

        Not *durably*, it is only good until the machine's next boot, which it says then (``unsynced_in``).
        """
        if not durably:
            from .linux import boot_id

            status = {**status, "unsynced_in": boot_id()}
        data = msgpack.packb(status, use_bin_type=True)
        reserved = "status.tmp"
        fd = open_to_write(self.path, reserved)
        try:
            os.pwrite(fd, data, 0)
            if durably:
                os.fsync(fd)
            os.ftruncate(fd, len(data))
            if durably:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(f"{self._at}{reserved}", self.status_file)
        if durably:
            sync_folder(self.path)
        return status

    def open_times(self, stream: str) -> int:
        """A descriptor to append to the file that says when what of a stream came. Raises OSError, NotARegularFile."""
        return open_to_write(self.path, _stream(stream) + TIMES_SUFFIX, os.O_APPEND)

    # -- read by anyone

    def exists(self) -> bool:
        """Whether the attempt was set up on this host."""
        return os.path.exists(f"{self._at}spec.msgpack")

    def read_spec(self) -> WorkSpec | None:
        """The spec of what to run; None where there is none, or the work has put something else in its place."""
        return spec_of(self._read("spec.msgpack"))

    def read_status(self) -> WorkStatus | None:
        """The status of how the attempt ended, or None while it has not."""
        return status_of(self._read("status.msgpack"))

    def read_started(self) -> WorkStarted | None:
        """Which shim took the attempt; None when none ever did, and empty when that cannot be read any more."""
        if not os.path.exists(f"{self._at}started"):
            return None
        return started_of(self._read("started"))

    def ended(self) -> bool:
        """Whether nothing will be added to the output any more."""
        return self.status_file.exists() or not self.path.exists()

    def reported(self) -> bool:
        """Whether the ledger knows the end."""
        return os.path.exists(f"{self._at}reported")

    def shim_pid(self) -> int | None:
        """The pid of the shim that holds the lock, or None when none does. Takes no lock itself.

        Never ask from the shim's own process: closing the file would drop its lock.
        """
        try:
            # Not through a link: closing a file drops every lock that this process has on it.
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
        finally:
            os.close(fd)
        kind, _, _, _, pid = struct.unpack("hhqqi", answer)
        return None if kind == fcntl.F_UNLCK else int(pid)

    def output_size(self, stream: str) -> int:
        """Bytes kept so far of ``stdout`` or ``stderr``."""
        return size_of(self.path, _stream(stream)) or 0

    def result_bytes(self) -> int | None:
        """The size of the result that was left; ``None``: none was."""
        try:
            return self.result.stat().st_size
        except OSError:
            return None

    def read_output(self, stream: str, offset: int = 0, max_bytes: int = 1 << 20) -> bytes:
        """At most *max_bytes* of ``stdout`` or ``stderr`` from *offset*; empty at the (present) end.

        To follow: read until empty; when :meth:`ended` was true before an empty read, that was all. Raises
        NotARegularFile when the work has put something else in its place.
        """
        try:
            with open_to_read(self.path, _stream(stream)) as fd:
                return os.pread(fd, max_bytes, offset)
        except OSError:
            return b""

    def read_times(self, stream: str) -> bytes:
        """The places of a stream's output (output_times.py); empty where there are none."""
        try:
            return read_whole(self.path, _stream(stream) + TIMES_SUFFIX, 2 * TIMES_BYTES_MAX) or b""
        except (OSError, NotARegularFile):
            return b""

    def read_result(self, bytes_max: int) -> bytes | None:
        """The content of the result file; ``None`` when there is no regular file of at most so many bytes."""
        try:
            return read_whole(self.path, "result.bin", bytes_max)
        except (OSError, NotARegularFile):
            return None

    def _read(self, name: str) -> object:
        """What the file holds, unpacked; None where that cannot be had."""
        if not os.path.lexists(f"{self._at}{name}"):
            return None  # as most are that are looked for: an attempt begins with nothing
        try:
            data = read_whole(self.path, name, 64 * MAX_STATUS_BYTES)
            return None if data is None else msgpack.unpackb(data, raw=False)
        except (OSError, ValueError, msgpack.UnpackException, NotARegularFile):
            return None


def _stream(stream: str) -> str:
    if stream not in ("stdout", "stderr"):
        raise BadRequest("an attempt has two streams", asked=stream[:40], hint="stdout or stderr")
    return stream
