"""The files that a command leaves for the steps behind it: packed at its end, and put where they are taken.

A pack is ``MAGIC`` and a tar archive of regular files, links that stay inside, and empty folders, in the order of their
paths, without times and owners: the same files give the same bytes, so that the digest of the pack is one of what was
left. Whoever unpacks one did not make it: no path leads out, and nothing but files, links and folders comes out.
Nothing of it lies behind one of its links, and no link goes up (``..``) behind another: so texts say where all leads.
"""

from __future__ import annotations

import io
import os
import secrets
import stat
import tarfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from actorgrid.errors import MalformedBody, OutputMissing
from actorgrid.output_paths import OUTPUT_FILES_MAX, inside
from actorgrid.working_dir import leads_out

MAGIC = b"AGfiles1"
_BLOCK = 512


class StepFiles(Mapping[str, bytes]):
    """What a command with ``outputs`` has left: the contents of its files, by their paths."""

    def __init__(self, pack: bytes) -> None:
        self._pack = pack
        self._files = {each.name: each for each in _members(pack) if each.isreg()}

    def __getitem__(self, path: str) -> bytes:
        member = self._files[path]
        begin = len(MAGIC) + member.offset_data
        return self._pack[begin : begin + member.size]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"<files: {', '.join(list(self)[:5])}{', ...' if len(self) > 5 else ''}>"

    def write_to(self, folder: str | Path, paths: Collection[str] | None = None) -> list[Path]:
        """Put them (of *paths* alone) below *folder*, in place of what is there; gives where. Raises OSError."""
        return put_files(self._pack, Path(folder), paths)


def is_pack(data: bytes) -> bool:
    """Whether what a step gave are files of a command."""
    return data.startswith(MAGIC)


def pack_files(folder: Path, bytes_max: int) -> bytes:
    """The pack of all that is in *folder*. Raises OutputMissing, OSError."""
    buffer = io.BytesIO()
    buffer.write(MAGIC)
    paths = _paths(folder)
    links = {path: os.readlink(folder / path) for path in paths if (folder / path).is_symlink()}
    for path, target in links.items():
        if _goes_up_behind_a_link(path, target, links):
            raise OutputMissing(
                "a link among the outputs of a step goes up behind another link",
                asked=path,
                found=f"it leads to {target[:200]}",
                hint="have it lead there on a way without that link, or leave the file itself",
            )
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            source = folder / path
            member = tarfile.TarInfo(path)
            if path in links:
                member.type, member.linkname = tarfile.SYMTYPE, links[path]
            elif source.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            else:
                # As long as it is when it is opened: whoever wrote it may go on writing.
                with open(source, "rb", opener=_open_plain) as read:
                    facts = os.fstat(read.fileno())
                    member.mode = 0o755 if facts.st_mode & 0o100 else 0o644
                    member.size = facts.st_size if stat.S_ISREG(facts.st_mode) else 0
                    if buffer.tell() + member.size + 4 * _BLOCK > bytes_max:
                        raise OutputMissing(
                            "the outputs of a step are too large to be handed on",
                            asked=path,
                            found=f"at most {bytes_max} bytes in all (work.max_result_bytes)",
                            hint="leave large files on a shared disk, and their paths in one that is named",
                        )
                    archive.addfile(member, read)
                continue
            archive.addfile(member)
    return buffer.getvalue()


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def put_files(pack: bytes, folder: Path, paths: Collection[str] | None = None) -> list[Path]:
    """Put the files of a pack below *folder*, in place of what is there; those that are there already stay untouched.
    With *paths*, these alone. Gives where all of them are. Raises MalformedBody, OSError."""
    written: list[Path] = []
    for member in _members(pack):
        if paths is not None and member.name not in paths:
            continue
        target = folder / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if member.isdir():
            target.mkdir(exist_ok=True)
            continue
        begin = len(MAGIC) + member.offset_data
        content = pack[begin : begin + member.size]
        if not _is_there(target, member, content):
            _put(target, member, content)
        written.append(target)
    return written


def _is_there(target: Path, member: tarfile.TarInfo, content: bytes) -> bool:
    with suppress(OSError):
        if member.issym():
            return os.readlink(target) == member.linkname
        facts = target.lstat()
        same = (
            not target.is_symlink()
            and facts.st_size == member.size
            and bool(facts.st_mode & 0o100) == bool(member.mode & 0o100)
        )
        return same and target.is_file() and target.read_bytes() == content
    return False


def _put(target: Path, member: tarfile.TarInfo, content: bytes) -> None:
    # Whole or not at all, and never into a file that has other names: a sent directory's are shared by its copies.
    draft = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        if member.issym():
            draft.symlink_to(member.linkname)
        else:
            with open(draft, "xb") as file:
                file.write(content)
            draft.chmod(0o755 if member.mode & 0o100 else 0o644)
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _paths(folder: Path) -> list[str]:
    found = []
    for at, folders, names in os.walk(folder):
        here = os.path.relpath(at, folder)
        links = [name for name in folders if os.path.islink(os.path.join(at, name))]
        found += [os.path.normpath(os.path.join(here, name)) for name in (*names, *links)]
        if not names and not folders and here != ".":
            found.append(here)
    return sorted(found)


def _members(pack: bytes) -> list[tarfile.TarInfo]:
    if not is_pack(pack):
        raise MalformedBody("what the step gave are no files")
    found: list[tarfile.TarInfo] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(pack[len(MAGIC) :]), mode="r:") as archive:
            for member in archive:
                _check(member)
                if len(found) >= OUTPUT_FILES_MAX:
                    raise MalformedBody("a pack has too many files", found=f"more than {OUTPUT_FILES_MAX}")
                if member.offset_data + (member.size if member.isreg() else 0) > len(pack) - len(MAGIC):
                    raise MalformedBody("a pack of files is cut off", asked=member.name[:200])
                found.append(member)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        if isinstance(error, MalformedBody):
            raise
        raise MalformedBody("a pack of files cannot be read", found=str(error)[:200]) from None
    _check_links(found)
    return found


def _check(member: tarfile.TarInfo) -> None:
    plain = member.isreg() or member.isdir() or (member.issym() and not leads_out(member.name, member.linkname))
    if not plain or member.sparse is not None or inside(member.name) != member.name:
        raise MalformedBody("a pack holds what is no file inside of its folder", asked=member.name[:200])


def _check_links(members: list[tarfile.TarInfo]) -> None:
    """Refuse what lies behind a link of the pack, and a link that goes up behind another. Raises MalformedBody."""
    links = {member.name: member.linkname for member in members if member.issym()}
    for member in members if links else ():
        behind = any(member.name[:end] in links for end, each in enumerate(member.name) if each == "/")
        if behind or (member.issym() and _goes_up_behind_a_link(member.name, member.linkname, links)):
            raise MalformedBody("a pack of files has a link that may lead out", asked=member.name[:200])


def _goes_up_behind_a_link(path: str, target: str, links: Mapping[str, str]) -> bool:
    """Whether the link at *path* goes up where its text does not say any more in which folder it is."""
    at, behind = path.rpartition("/")[0], False
    for part in target.split("/"):
        if part == "..":
            if behind:
                return True
            at = at.rpartition("/")[0]
        elif part not in ("", "."):
            at = f"{at}/{part}" if at else part
            behind = behind or at in links
    return False
