"""The files in which work finds its host's API and its own credential, written anew when the address changed."""

from __future__ import annotations

from pathlib import Path

from actorgrid.actors.ledger.record_types import AllocationRecord
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.envelope import GetStatus
from actorgrid.supervisors.server import Server

from .credentials import credential, read_key, write_file

ASK_S = 2.0
ASK_FIRST_S, ASK_MAX_S = 0.1, 5.0
LOOK_S = 30.0
"""How often it is looked whether the API is where it was; within one boot it stays."""


class CredentialFiles:
    """Of one host. At most as many files are written anew as there are attempts and leased workers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._key = b""
        self._url: str | None = None
        self._files: dict[Path, tuple[str, int]] = {}

    def start(self) -> None:
        """Read the key and begin to look for the API. Raises DataDirUnusable."""
        self._key = read_key(self._server.host.paths.work_key_file)
        self._server.spawn(self._follow())

    def has(self, path: Path) -> bool:
        """Whether the file was written since this start."""
        return path in self._files

    def write(self, path: Path, allocation: AllocationRecord, uid: int = 0) -> None:
        """Let the work that *allocation* was granted to find the API by the file *path*.

        *uid*: whose the file is, now and whenever it is written anew; 0: the agent's.
        """
        text = credential(self._key, allocation)
        self._files[path] = text, uid
        if not write_file(path, self._url, text, uid):
            self._server.log.warning("%s has no credential: its file cannot be written", allocation["allocation_id"])

    def moved(self, url: str) -> None:
        """Have all files say that the API is at *url*."""
        self._url = url
        for path, (text, uid) in self._files.items():
            write_file(path, url, text, uid)

    def forget(self, path: Path) -> None:
        """Write the file anew no more: its work is over, and whoever calls removes it."""
        self._files.pop(path, None)

    def remove(self, path: Path) -> None:
        """Forget work that is over; its credential opens nothing any more."""
        self._files.pop(path, None)
        path.unlink(missing_ok=True)

    def remove_all(self, folder: Path) -> None:
        """``remove`` for all files of a worker: none of its leases is held any more."""
        for path in [path for path in self._files if path.parent == folder]:
            self.remove(path)

    async def _follow(self) -> None:
        """Find the API, and look now and then whether it is still there."""
        pause_s = ASK_FIRST_S
        while True:
            try:
                status = await self._server.call("gateway", GetStatus(), ASK_S)
                url = str(status["url"])
            except ActorGridError as error:
                self._server.log.debug("where the API is: %s", error)
                await self._server.sleep(pause_s)
                pause_s = min(2 * pause_s, ASK_MAX_S)
                continue
            if url != self._url:
                self.moved(url)
            pause_s = ASK_FIRST_S
            await self._server.sleep(LOOK_S)
