"""The keys that ``actorgrid login`` was given, by the addresses they are for: a file of one's own (0600).

A key is looked for where an address is named and no token, and goes to that address alone. Bound: 64 addresses.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, TypedDict

from actorgrid.errors import DataDirUnusable, KeyExposed

LOGINS_MAX = 64


class Login(TypedDict):
    """A key that is good for a while."""

    key: str
    key_id: str
    user_id: str
    expires_at: float
    """Seconds since the epoch."""


def logins_file() -> Path:
    """``actorgrid/logins.json`` under ``$XDG_CONFIG_HOME`` or ``~/.config``."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "actorgrid" / "logins.json"


def find_login(urls: str) -> Login | None:
    """The key that is good at one of these addresses, separated by commas. Raises KeyExposed."""
    try:
        known = _read(logins_file())
    except RuntimeError:  # nobody's home
        return None
    for url in urls.split(","):
        login = known.get(_normal(url))
        if login is not None:
            return login
    return None


def keep_login(url: str, login: Login) -> None:
    """Remember *login* for that address. Raises DataDirUnusable, KeyExposed."""
    path = logins_file()
    known = _read(path)
    known.pop(_normal(url), None)  # to the end: the oldest give way
    known[_normal(url)] = login
    _write(path, known)


def forget_login(key_id: str) -> None:
    """Forget a key everywhere. Raises DataDirUnusable, KeyExposed."""
    path = logins_file()
    known = _read(path)
    kept = {url: login for url, login in known.items() if login["key_id"] != key_id}
    if len(kept) != len(known):
        _write(path, kept)


def _normal(url: str) -> str:
    return url.strip().rstrip("/").lower()


def _read(path: Path) -> dict[str, Login]:
    """What is kept and still good."""
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & 0o077 or status.st_uid != os.geteuid():
                raise KeyExposed(
                    "the file with your keys is not yours alone",
                    asked=str(path),
                    hint=f"chmod 600 {path}, or remove it",
                )
            found: Any = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    good: dict[str, Login] = {}
    for url, each in found.items() if isinstance(found, dict) else ():
        texts = isinstance(each, dict) and all(isinstance(each.get(name), str) for name in ("key", "key_id", "user_id"))
        if texts and isinstance(each.get("expires_at"), int | float) and time.time() < each["expires_at"]:
            good[url] = Login(
                key=each["key"], key_id=each["key_id"], user_id=each["user_id"], expires_at=each["expires_at"]
            )
    return good


def _write(path: Path, known: dict[str, Login]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(dict(list(known.items())[-LOGINS_MAX:]), file, indent=1)
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise DataDirUnusable(f"cannot write {path}: {error.strerror}", asked=str(path)) from error
