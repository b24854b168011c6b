"""What jobs kept of their directories, listed and fetched from whichever host has it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from actorgrid.errors import HostUnreachable, MalformedBody, NotFound, StorageError
from actorgrid.output_paths import inside

from .http import AdminHttp, segment

READ_BYTES = 256 * 1024
BREAKS_MAX = 5


class JobFile(NamedTuple):
    """A file that a job kept."""

    path: str
    """Relative to the directory that the job ran in."""
    size_bytes: int
    modified_at: float
    executable: bool


def _tell_of(tell: Callable[[str, int, int], None], path: str, before: int, total: int, count: int) -> None:
    tell(path, before + count, total)


class JobFiles:
    """The kept files of one job; of its latest attempt unless *attempt* is given, of rank 0 of a gang unless *rank*."""

    def __init__(self, http: AdminHttp, job_id: str, attempt: int | None = None, rank: int = 0) -> None:
        self._http = http
        self._job_id = job_id
        self._which = {"attempt": attempt, "rank": rank or None}
        self.missing: list[str] = []
        """What was named and not there; known once they are listed."""
        self.problem = ""
        """Why not all is there that was."""

    def listed(self) -> Iterator[JobFile]:
        """All of them, in the order of their paths. Raises UnknownJob, NotFound, WrongState, ResultGone."""
        behind: str | None = None
        while True:
            path = f"/api/jobs/{segment(self._job_id)}/files"
            page = self._http.get(path, behind=behind, **self._which)
            self.missing, self.problem = list(page["missing"]), str(page["problem"])
            for each in page["files"]:
                yield JobFile(each["path"], each["size_bytes"], each["modified_at"], each["executable"])
            behind = page["next"]
            if behind is None:
                return

    def below(self, path: str) -> list[JobFile]:
        """The file of that *path*, or those of the folder; without a path, all. Raises NotFound."""
        wanted = "" if path in ("", ".") else inside(path)
        files = list(self.listed())
        found = [each for each in files if not wanted or each.path == wanted or each.path.startswith(f"{wanted}/")]
        if wanted is None or (wanted and not found):
            raise NotFound(
                "no such file or folder was kept",
                asked=path,
                found=", ".join(each.path for each in files[:10]) or "none were",
                hint=f"actorgrid get {self._job_id[:8]} --list",
            )
        return found

    def fetch(
        self, path: str, to: str | os.PathLike[str], tell: Callable[[str, int, int], None] = lambda *_: None
    ) -> list[Path]:
        """Write them below the folder *to*; gives where. A folder is written by its name, with what it holds.

        What is there by that path is replaced, whole or not at all. *tell*: (path, bytes so far, bytes in all). Raises
        what ``listed`` raises, HostUnreachable, StorageError.
        """
        files = self.below(path)
        wanted = inside(path) or ""
        # Of results/a/b that is asked for, b is written: as cp does.
        strip = len(wanted.rpartition("/")[0]) + 1 if "/" in wanted else 0
        total, done = sum(each.size_bytes for each in files), 0
        written: list[Path] = []
        for each in files:
            plain = inside(each.path)
            if plain is None:
                raise MalformedBody("a host lists a path that leads out", found=each.path[:200])
            target = Path(to) / plain[strip:]
            done += self._write(each, target, partial(_tell_of, tell, plain, done, total))
            written.append(target)
        return written

    def _write(self, file: JobFile, target: Path, tell: Callable[[int], None]) -> int:
        draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            count = 0
            with draft.open("xb") as out:
                for piece in self._pieces(file):
                    out.write(piece)
                    count += len(piece)
                    tell(count)
            if count != file.size_bytes:
                raise HostUnreachable("a file broke off", asked=file.path, found=f"{count} of {file.size_bytes} bytes")
            draft.chmod(0o755 if file.executable else 0o644)
            os.utime(draft, (file.modified_at, file.modified_at))
            draft.replace(target)
        except OSError as error:
            raise StorageError(f"cannot write {target}: {error.strerror}", asked=file.path) from error
        finally:
            draft.unlink(missing_ok=True)
        return count

    def _pieces(self, file: JobFile) -> Iterator[bytes]:
        """Its bytes; where the way to them breaks, it is gone on from there."""
        path, read, breaks = f"/api/jobs/{segment(self._job_id)}/file", 0, 0
        while read < file.size_bytes:
            began = read
            try:
                with self._http.stream(path, path=file.path, offset=read or None, **self._which) as response:
                    while piece := response.read1(READ_BYTES):
                        read += len(piece)
                        yield piece
            except (OSError, ValueError, AttributeError) as error:  # what http.client raises when it breaks off
                breaks = 0 if read > began else breaks + 1
                if breaks >= BREAKS_MAX:
                    raise HostUnreachable("a file broke off", asked=file.path) from error
                continue
            if read == began:
                return

    def answer(self, written: list[Path]) -> dict[str, Any]:
        """What was fetched, for JSON."""
        return {
            "job_id": self._job_id,
            "files": [str(path) for path in written],
            "missing": self.missing,
            "problem": self.problem,
        }
