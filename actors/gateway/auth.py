"""Who is at the door: the bearer token, and the Host header."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from pathlib import Path

from actorgrid.errors import BadRequest, DataDirUnusable, Overloaded, WrongToken

log = logging.getLogger("actorgrid.gateway")

FAILURES_PER_S = 50.0
"""Wrong tokens answered per second; beyond that they get Overloaded. A right token always passes."""
LOG_INTERVAL_S = 10.0
"""Refusals are logged at most this often, with their number."""


def read_token(path: Path) -> str:
    """The token in *path*, made (0600) when there is none. Raises DataDirUnusable."""
    for _ in range(2):
        try:
            token = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            _make_token(path)
            continue
        except (OSError, ValueError) as error:
            raise DataDirUnusable(
                f"cannot read the token: {error}", asked=str(path), hint="mend or delete the file; a new one is made"
            ) from error
        if len(token) < 16:
            raise DataDirUnusable(
                "the token is too short to keep anyone out",
                asked=str(path),
                found=f"{len(token)} characters",
                hint="delete the file; a new one is made at the next start",
            )
        path.chmod(0o600)
        return token
    raise DataDirUnusable("the token vanished as it was made", asked=str(path))


def _make_token(path: Path) -> None:
    # Complete before it has its name, so that nobody ever reads half of it.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, path)
        except FileExistsError:
            log.info("another process made the token first; using that one")
        finally:
            draft.unlink()
    except OSError as error:
        raise DataDirUnusable(
            f"cannot write the token: {error.strerror}", asked=str(path), hint="free some room, or mend its permissions"
        ) from error


class TokenGate:
    """Lets the right token through, in constant time; counts and slows down the wrong ones."""

    def __init__(self, token: str, token_file: Path) -> None:
        self._token = token.encode()
        self._token_file = token_file
        self._allowance = FAILURES_PER_S
        self._refilled_s: float | None = None
        self._logged_s: float | None = None
        self._unlogged = 0
        self.refused_total = 0

    def check(self, authorization: str | None, now_s: float) -> None:
        """Raises WrongToken, or Overloaded when there are too many wrong ones."""
        scheme, _, given = (authorization or "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
        if right and scheme.lower() == "bearer":
            return
        self._count(now_s)
        raise WrongToken(
            "the bearer token is missing" if not authorization else "the bearer token is wrong",
            asked="Authorization: Bearer TOKEN",
            hint=f"the token is in {self._token_file}; commands find it with --data-dir, or set ACTORGRID_TOKEN",
        )

    def _count(self, now_s: float) -> None:
        self.refused_total += 1
        self._unlogged += 1
        if self._logged_s is None or now_s - self._logged_s >= LOG_INTERVAL_S:
            log.warning("%d request(s) without the right token were refused", self._unlogged)
            self._logged_s, self._unlogged = now_s, 0
        if self._refilled_s is not None:
            self._allowance = min(FAILURES_PER_S, self._allowance + (now_s - self._refilled_s) * FAILURES_PER_S)
        self._refilled_s = now_s
        if self._allowance < 1:
            raise Overloaded("too many requests with a wrong token", hint="stop, find the right token, and try again")
        self._allowance -= 1


def allowed_names(bind: str) -> frozenset[str]:
    """Names a Host header may carry: loopback's, and the address we listen on."""
    own = f"[{bind}]" if ":" in bind else bind
    return frozenset({"localhost", "127.0.0.1", "[::1]", own.lower()})


def check_host(header: str | None, names: frozenset[str]) -> None:
    """Refuse a name that is not ours: a page may have pointed its own name at us. Raises BadRequest."""
    name = (header or "").strip().lower()
    if not name.endswith("]"):
        host, colon, port = name.rpartition(":")
        if colon and port.isdigit():
            name = host
    if name not in names:
        raise BadRequest(
            "the Host header does not name this host",
            asked=f"Host: {(header or '(none)')[:100]}",
            found=", ".join(sorted(names)),
            hint="use http://127.0.0.1:PORT",
        )
