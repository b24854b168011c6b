"""Where a host keeps its files: one data directory, and one short runtime directory for sockets.

DATA_DIR/                 0700, one host, one agent at a time
  agent.lock              held (flock) by the running agent; holds its pid
  agent.json              written when ready: url, pid, boot_id, version; removed by an orderly stop
  host.json               host_id and incarnation (counts starts)
  cluster.json            its place in a cluster, when it has one
  start.json              the flags of its starts, and its settings at the last one
  left.json               there only when it left that cluster, or was removed
  security/               0700: key, certificate, authorities (see actors/security)
  admin.token             0600, the bearer token
  work.key                0600, by which the credentials of work that runs here are known
  agent.log               JSON lines
  ledger/                 segments/*.log and state.db
  state/                  shared CRDT state
  blobs/                  payloads by SHA-256, written before the job that names them is accepted
  sent/                   0700: which tenant has sent which of these (see actors/files/sent_files.py)
  attempts/ATTEMPT_ID/    spec, output, status and result of one attempt (see actors/work)
  workers/WORKER_ID/      the same for a pool worker
  environments/           0700: Python environments of work, by the SHA-256 of their specs (see
                          actors/work/built_environments.py)
  users/UID/              0700: what work of a uid of its own shares: its sockets and its Python environments (see
                          actors/work/isolation/own_sockets.py, user_environments.py)
  usage/                  what work used, and uses (see actors/work/usage_keeper.py)
  working_dirs/           0700: working directories that came with work, by SHA-256 (see actors/work/working_dirs.py)
RUNTIME_DIR/              0700, sockets only (an AF_UNIX path holds 107 bytes)
  boot-BOOT_ID/           actor sockets of one boot
  work/                   sockets of shims and workers; outlives a boot
  data                    a link to DATA_DIR: once that is gone, and nobody listens here, whoever starts removes it all
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from actorgrid.errors import DataDirUnusable

DATA_LINK = "data"
_RUNTIME_HINT = "remove it, or set XDG_RUNTIME_DIR to a directory of your own (as a login does: /run/user/UID)"


def _is_ours(folder: str) -> bool:
    """Whether *folder* is this user's alone: nobody else can replace what we make in it."""
    try:
        return os.stat(folder).st_uid == os.getuid() and os.access(folder, os.W_OK)
    except OSError:
        return False


def default_data_dir() -> Path:
    """``$ACTORGRID_DATA_DIR``, else ``actorgrid`` under ``$XDG_DATA_HOME`` or ``~/.local/share``."""
    named = os.environ.get("ACTORGRID_DATA_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "actorgrid"


@dataclass(frozen=True, slots=True)
class HostPaths:
    """All paths of one host, from its data directory."""

    data_dir: Path

    @property
    def runtime_dir(self) -> Path:
        """The runtime directory: short, this user's own, the same for the same data directory in every boot."""
        base = os.environ.get("XDG_RUNTIME_DIR")
        if not base or len(base) > 40 or not _is_ours(base):
            # The name can be guessed, and anybody may make it first: so it has to be a folder itself, no link, and
            # ours (see make). Then nobody else can move or replace it: such folders are sticky.
            base = tempfile.gettempdir() if len(tempfile.gettempdir()) <= 40 else "/tmp"  # nosec B108
        name = hashlib.sha256(os.fsencode(os.path.realpath(self.data_dir))).hexdigest()[:12]
        return Path(base) / f"actorgrid-{os.getuid()}-{name}"

    @property
    def lock_file(self) -> Path:
        """The lock file that the running agent holds."""
        return self.data_dir / "agent.lock"

    @property
    def agent_file(self) -> Path:
        """The file that says how to reach the running agent."""
        return self.data_dir / "agent.json"

    @property
    def host_file(self) -> Path:
        """The file with the host's id and incarnation."""
        return self.data_dir / "host.json"

    @property
    def cluster_file(self) -> Path:
        """The file with the host's enrolment in a cluster."""
        return self.data_dir / "cluster.json"

    @property
    def start_file(self) -> Path:
        """The file with the flags of the host's starts."""
        return self.data_dir / "start.json"

    @property
    def left_file(self) -> Path:
        """The file that is there only when the host is no member of its cluster any more."""
        return self.data_dir / "left.json"

    @property
    def security_dir(self) -> Path:
        """Keys and certificates."""
        return self.data_dir / "security"

    @property
    def token_file(self) -> Path:
        """The admin bearer token."""
        return self.data_dir / "admin.token"

    @property
    def audit_dir(self) -> Path:
        """What was asked of this host, by whom."""
        return self.data_dir / "audit"

    @property
    def work_key_file(self) -> Path:
        """The key that credentials of work are made with."""
        return self.data_dir / "work.key"

    @property
    def mig_gpus_file(self) -> Path:
        """The file with how GPUs were that the agent has cut for work."""
        return self.data_dir / "mig_gpus.json"

    @property
    def power_limits_file(self) -> Path:
        """The file with the power limits that devices had before the agent changed them."""
        return self.data_dir / "power_limits.json"

    @property
    def mps_file(self) -> Path:
        """The file with which MPS daemons the agent has started."""
        return self.data_dir / "mps.json"

    @property
    def mps_logs_dir(self) -> Path:
        """What MPS daemons and their servers log."""
        return self.data_dir / "mps"

    @property
    def log_file(self) -> Path:
        """What the agent's processes log."""
        return self.data_dir / "agent.log"

    @property
    def ledger_dir(self) -> Path:
        """Segments and state of the ledger."""
        return self.data_dir / "ledger"

    @property
    def state_dir(self) -> Path:
        """The shared CRDT state."""
        return self.data_dir / "state"

    @property
    def blobs_dir(self) -> Path:
        """Payloads by digest."""
        return self.data_dir / "blobs"

    @property
    def sent_dir(self) -> Path:
        """Which tenant has sent which of them."""
        return self.data_dir / "sent"

    @property
    def attempts_dir(self) -> Path:
        """One directory per attempt."""
        return self.data_dir / "attempts"

    @property
    def workers_dir(self) -> Path:
        """One directory per pool worker."""
        return self.data_dir / "workers"

    @property
    def environments_dir(self) -> Path:
        """The directory of the Python environments that were built for work."""
        return self.data_dir / "environments"

    @property
    def working_dirs_dir(self) -> Path:
        """The working directories that came with work, unpacked."""
        return self.data_dir / "working_dirs"

    @property
    def objects_dir(self) -> Path:
        """What the object store has on the disk, in files without a name."""
        return self.data_dir / "objects"

    @property
    def usage_dir(self) -> Path:
        """What work of this host has used."""
        return self.data_dir / "usage"

    @property
    def users_dir(self) -> Path:
        """What the work of each uid of its own shares."""
        return self.data_dir / "users"

    def own_sockets_dir(self, uid: int) -> Path:
        """What the work of that uid has for ``work_sockets_dir``."""
        return self.users_dir / str(uid) / "sockets"

    def shared_memory_dir(self, uid: int) -> Path:
        """What work of that uid that shares memory has for ``/dev/shm``: a uid is one data directory's alone."""
        return Path("/dev/shm", f"actorgrid-{uid}")  # nosec B108 - where it is on Linux

    @property
    def work_sockets_dir(self) -> Path:
        """Sockets of shims and workers."""
        return self.runtime_dir / "work"

    def boot_dir(self, boot_id: str) -> Path:
        """Actor sockets of one boot."""
        return self.runtime_dir / f"boot-{boot_id}"

    def leave(self) -> None:
        """Remove the runtime directories that are empty: after an orderly stop with no work left, all of them."""
        with suppress(OSError):  # sockets of work that goes on, or somebody else was quicker
            for path in self.work_sockets_dir.iterdir():
                if path.is_symlink() and not path.exists():  # of a door that is closed
                    path.unlink()
            with suppress(FileNotFoundError):
                (self.work_sockets_dir / "doors").rmdir()
            self.work_sockets_dir.rmdir()
            if os.listdir(self.runtime_dir) == [DATA_LINK]:
                (self.runtime_dir / DATA_LINK).unlink()
            self.runtime_dir.rmdir()

    def make(self) -> None:
        """Create what is missing, all 0700. Raises DataDirUnusable."""
        for folder in (
            self.data_dir,
            self.ledger_dir,
            self.state_dir,
            self.blobs_dir,
            self.attempts_dir,
            self.workers_dir,
            self.working_dirs_dir,
            self.objects_dir,
            self.usage_dir,
            self.runtime_dir,
            self.work_sockets_dir,
        ):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A link among our own folders is ours. One among everybody's may be somebody's: whatever it leads to,
                # our own home too, would be closed to others and filled with sockets.
                found = folder.lstat() if folder.is_relative_to(self.runtime_dir) else folder.stat()
            except OSError as error:
                raise DataDirUnusable(
                    f"cannot use {folder}: {error.strerror}",
                    asked=str(self.data_dir),
                    hint="give another with --data-dir, or mend its permissions",
                ) from error
            if stat.S_ISLNK(found.st_mode):
                raise DataDirUnusable(
                    f"{folder} is a symbolic link, made by uid {found.st_uid}",
                    asked="a directory of our own for sockets",
                    found=f"a link to {os.readlink(folder)}",
                    hint=_RUNTIME_HINT,
                )
            if found.st_uid != os.getuid():
                raise DataDirUnusable(
                    f"{folder} belongs to uid {found.st_uid}, we are {os.getuid()}",
                    asked=str(self.data_dir),
                    hint=_RUNTIME_HINT if folder.is_relative_to(self.runtime_dir) else "give another with --data-dir",
                )
            if stat.S_IMODE(found.st_mode) & 0o077:
                folder.chmod(0o700)
        with suppress(OSError):  # it is there; or there is no room for it, and without it this directory only stays
            (self.runtime_dir / DATA_LINK).symlink_to(os.path.realpath(self.data_dir))
