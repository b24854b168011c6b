"""The folders that are the own of work that is kept apart: made before it begins, gone when it has ended."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from actorgrid.actors.files.untrusted_files import open_to_read, remove_tree

from ..apart_records import ApartSpec
from ..checkpoint_spool import ANSWERS
from .own_sockets import make_own_sockets
from .user_environments import make_environments

HOME, TMP, SECRETS = "home", "tmp", "secrets"
"""In the attempt's folder: its home, what it has for /tmp, and where its secrets are mounted."""
OWN_CWD = "cwd"
"""Its copy of a directory that came along (``AttemptDir.own_cwd``)."""
INPUTS, TAKERS = "inputs", "takers"
"""The agent's, for the work to read: what other steps gave, and how far those are who take its items."""
_NO_LINKS = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system says that has no second name for a file there."""


def is_own_cwd(cwd: str, attempt: str) -> bool:
    """Whether *cwd* is a directory that work is given in its attempt's folder: not that folder itself, which is the
    agent's, and which a job can name, too."""
    return cwd in (os.path.join(attempt, HOME), os.path.join(attempt, OWN_CWD))


def make_own_folders(spec: ApartSpec, own_cwd: Path) -> None:
    """Have the folders that the work owns, and its copy of a directory that came along, be of its uid. Raises OSError.

    Called before anything of it runs. What else is in the attempt's folder stays the agent's: work that could replace
    it would have the agent read what it may not.
    """
    folder, uid = spec["attempt"], spec["uid"]
    own = [f"{folder}{os.sep}{name}" for name in (HOME, TMP)]  # a path as an object costs each child more than the call
    own += spec.get("own", ())
    for path in own:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
    if "environments" in spec:
        make_environments(Path(spec["environments"]), uid)
    answers = os.path.join(folder, ANSWERS)
    if answers in spec["read"]:
        os.mkdir(answers, 0o755)
    if spec.get("takers"):
        with suppress(FileExistsError):
            os.mkdir(f"{folder}{os.sep}{TAKERS}", 0o755)
    if os.geteuid() != 0:
        return  # the work has our uid
    os.chmod(folder, 0o711)  # nosec B103 - by name, and no list
    for path in own:
        os.lchown(path, uid, uid)
    for at, _, names in os.walk(own_cwd) if os.path.lexists(own_cwd) else ():
        os.lchown(at, uid, uid)
        for name in names:
            # Files are second names of those that were sent, which are for everybody to read: they stay the agent's.
            if stat.S_ISLNK(os.lstat(os.path.join(at, name)).st_mode):
                os.lchown(os.path.join(at, name), uid, uid)
    if "secrets" in spec:
        _give_secrets(Path(spec["secrets"]), Path(folder, SECRETS), uid)
    if "sockets" in spec:
        make_own_sockets(spec["sockets"], uid)
    if "shared_memory" in spec:
        _make_shared_memory(spec["shared_memory"], uid)
    for path in spec["read"]:
        if path != answers:
            with open_to_read(Path(path).parent, Path(path).name) as held:
                os.fchmod(held, 0o644)  # in a folder of the agent's, which only it can enter


def give_inputs(spec: ApartSpec) -> None:
    """Have what it takes of other steps in a folder of the attempt's, by second names: a mount for each, as other files
    have it, would be thousands. Called before anything of the work runs. Raises OSError, NotARegularFile."""
    if not spec.get("inputs"):
        return
    place = Path(spec["attempt"], INPUTS)
    remove_tree(place)
    place.mkdir(mode=0o755)
    for name, source in spec["inputs"].items():
        target = place / name
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(Path(source), target)
        with open_to_read(place, name) as held:
            if os.geteuid() == 0:
                os.fchmod(held, 0o644)  # whoever has another name for it has it below a folder that only we enter


def _copy(source: Path, target: Path) -> None:
    with open_to_read(source.parent, source.name) as held, open(target, "xb") as written:
        while piece := os.read(held, 2**20):
            written.write(piece)


def _give_secrets(folder: Path, place: Path, uid: int) -> None:
    """Have each file be the uid's to read; the folder stays ours, in one that nobody else enters, and is mounted at
    *place* so that nothing in it can be written."""
    place.mkdir(mode=0o711, exist_ok=True)
    for name in os.listdir(folder):
        os.chown(folder / name, uid, uid, follow_symlinks=False)
    folder.chmod(0o755)


def _make_shared_memory(folder: str, uid: int) -> None:
    """Have a folder that is the uid's alone where everybody can make one. Raises OSError."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (0, uid):
            raise PermissionError(errno.EPERM, f"{folder} is somebody else's") from None
    os.lchown(folder, uid, uid)  # it is a folder that nobody but root and the uid can replace by another


def remove_own_folders(spec: ApartSpec, names: Iterable[str] = (HOME, TMP, INPUTS)) -> None:
    """Remove them, or those of these *names*, when nothing of the work lives any more."""
    if spec["level"] == "full":
        for name in names:
            remove_tree(Path(spec["attempt"]) / name)
