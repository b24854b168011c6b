"""What opens this host's door to work that runs here: one credential for each attempt and each lease of a session.

    agw1.WORK_ID.MAC

WORK_ID is the attempt's or the lease's; MAC is made with a key that only this host's agent has, over the id, the
fencing token of the grant and the user it was granted to. Nothing of it is stored: whoever has the key makes it
again, after a restart, too. It is good on this host, and for as long as the ledger holds that very grant here.

    {"url": "http://127.0.0.1:7400", "token": "agw1...."}

is the file in which work finds it (``ACTORGRID_CREDENTIAL_FILE``); the agent writes it anew when its door moved.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from actorgrid.actors.files.identity import create_secret
from actorgrid.actors.files.untrusted_files import write_all
from actorgrid.actors.ledger.record_types import AllocationRecord
from actorgrid.errors import DataDirUnusable

PREFIX = "agw1"
KEY_BYTES = 32
TEXT_MAX = 300
FILE_BYTES_MAX = 4096
_LABEL = b"actorgrid work credential 1\0"


def credential(key: bytes, allocation: AllocationRecord) -> str:
    """The credential's text for the work that *allocation* was granted to."""
    work_id, token = str(allocation["allocation_id"]), allocation["token"]
    return f"{PREFIX}.{work_id}.{_mac(key, work_id, token, user_of(allocation))}"


def work_id_of(text: str) -> str | None:
    """The work's id in a text that may be a credential; ``None`` for another text. Ids have dots themselves."""
    head, _, rest = text.partition(".")
    work_id, _, mac = rest.rpartition(".")
    return work_id if head == PREFIX and work_id and mac and len(text) <= TEXT_MAX else None


def opens(key: bytes, text: str, allocation: AllocationRecord | None, host_id: str) -> bool:
    """Whether *text* is the credential of *allocation*, which is held on this host. Takes the same time for all."""
    expected = credential(key, allocation) if allocation is not None else f"{PREFIX}.none.{_mac(key, '', (0, 0), '')}"
    right = hmac.compare_digest(text.encode("utf-8", "replace"), expected.encode())
    return right and allocation is not None and allocation["host"] == host_id


def user_of(allocation: AllocationRecord) -> str:
    """The user whose rights the work has: whoever it was submitted for."""
    return str(allocation.get("user_id") or "")


def _mac(key: bytes, work_id: str, token: Sequence[int], user: str) -> str:
    said = json.dumps([work_id, [int(part) for part in token], user]).encode()
    digest = hmac.new(key, _LABEL + said, hashlib.sha256).digest()
    return base64.b32encode(digest).decode("ascii").rstrip("=").lower()


def read_key(path: Path) -> bytes:
    """The host's key in *path*, made (0600) when there is none. Raises DataDirUnusable."""
    for _ in range(2):
        try:
            key = bytes.fromhex(path.read_text(encoding="ascii").strip())
        except FileNotFoundError:
            # The gateway and the worker manager may both look for it first.
            create_secret(path, secrets.token_hex(KEY_BYTES))
            continue
        except (OSError, ValueError) as error:
            raise DataDirUnusable(
                f"cannot read the key for work's credentials: {error}",
                asked=str(path),
                hint="delete the file; a new one is made, and what runs is given new credentials",
            ) from error
        if len(key) != KEY_BYTES:
            raise DataDirUnusable(
                "the key for work's credentials is cut short",
                asked=str(path),
                found=f"{len(key)} bytes",
                hint="delete the file; a new one is made, and what runs is given new credentials",
            )
        return key
    raise DataDirUnusable("the key for work's credentials vanished as it was made", asked=str(path))


def write_file(path: Path, url: str | None, text: str, uid: int = 0) -> bool:
    """Write *text*, and where to show it, for work to find. ``False`` on a full disk, or when its folder is gone.

    *uid*: of the work, where it has one of its own; the file is that uid's, and nobody else's to read.
    """
    draft = f"{path}.{secrets.token_hex(4)}"
    try:
        _write_new(draft, json.dumps({"url": url, "token": text}).encode("ascii"), uid)
        os.replace(draft, path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        return False
    return True


def _write_new(path: str, data: bytes, uid: int) -> None:
    # Without a file object: each attempt has one, and that asks the kernel four things more.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if uid:
            os.fchown(descriptor, uid, uid)
        write_all(descriptor, data)
    finally:
        os.close(descriptor)
