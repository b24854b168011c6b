"""Where the host is and what opens its door: explicit, from the environment, or from a data directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorgrid.configs.paths import HostPaths, default_data_dir
from actorgrid.errors import HostUnreachable
from actorgrid.fencing import is_fencing_token
from actorgrid.task_context import CREDENTIAL_FILE

CREDENTIAL_WAIT_S, CREDENTIAL_AGAIN_S = 10.0, 0.1
"""How long work waits for an agent that has just started to say where its door is."""


def locate(
    data_dir: str | os.PathLike[str] | None = None, url: str | None = None, token: str | None = None
) -> tuple[str, str]:
    """The URL and bearer token of a host; of several, separated by commas, where several were named.

    In this order: what is given; ``ACTORGRID_URL`` and ``ACTORGRID_TOKEN`` (unless *data_dir* is given); inside of a
    job or task the agent of its host, with the rights of its submitter; the running agent of *data_dir*, or of the
    default data directory. A token that is not given is read from the data directory when the agent there serves that
    URL, and else is the one that ``actorgrid login`` was given for it; else it stays empty. Raises HostUnreachable.
    """
    if url is None and data_dir is None:
        url = os.environ.get("ACTORGRID_URL") or None
    if token is None and data_dir is None:
        token = bearer_token_in(os.environ)
    if url is None and data_dir is None and (own := work_credential()) is not None:
        return own.url, own.token if token is None else token
    paths = HostPaths(Path(data_dir) if data_dir is not None else default_data_dir())
    if url is None:
        url = str(_running_agent(paths)["url"])
        return url, token if token is not None else _token(paths)
    if token is None:
        token = _token_of(url, paths) or _token_of_login(url)
    return url, token


def bearer_token_in(environ: Mapping[str, str]) -> str | None:
    """The bearer token in ``ACTORGRID_TOKEN``; None where it holds nothing, or the fencing token of work."""
    text = environ.get("ACTORGRID_TOKEN", "")
    return text if text and not is_fencing_token(text) else None


@dataclass(frozen=True, slots=True)
class WorkCredential:
    """What work is given of its host's agent: where its API is, and the token that opens it."""

    url: str
    token: str


def work_credential() -> WorkCredential | None:
    """The agent's address as written for the job or task that this process belongs to; ``None`` outside of work.

    Raises HostUnreachable when it is not there (any more), or the agent does not say within 10 s where its door is.
    """
    name = os.environ.get(CREDENTIAL_FILE)
    if not name:
        return None
    deadline = time.monotonic() + CREDENTIAL_WAIT_S
    while True:
        found = _read_credential(Path(name))
        if found is not None:
            return found
        if time.monotonic() >= deadline:
            raise HostUnreachable(
                "the agent has not said yet where this host's door is",
                asked=name,
                hint="is it up? What runs goes on without it; try again in a moment",
            )
        time.sleep(CREDENTIAL_AGAIN_S)


def _read_credential(path: Path) -> WorkCredential | None:
    try:
        found = json.loads(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        raise HostUnreachable(
            "the job or task that this process was started by is over, and with it what opened the door",
            asked=str(path),
            found="no such file",
            hint="name a host with --data-dir, --url or ACTORGRID_URL (and a token with ACTORGRID_TOKEN)",
        ) from None
    except (OSError, ValueError) as error:
        raise HostUnreachable(f"cannot read {path}: {error}", hint=f"{CREDENTIAL_FILE} names it") from error
    if not isinstance(found, dict) or not isinstance(found.get("token"), str):
        raise HostUnreachable(f"{path} does not hold an agent's address", hint=f"{CREDENTIAL_FILE} names it")
    url = found.get("url")
    return WorkCredential(url, found["token"]) if isinstance(url, str) and url else None


def fingerprint(given: str | None = None) -> str | None:
    """By which authority hosts behind https are known: *given*, or ``ACTORGRID_CA_FINGERPRINT``."""
    return given or os.environ.get("ACTORGRID_CA_FINGERPRINT") or None


def _running_agent(paths: HostPaths) -> dict[str, Any]:
    start = f"start one: actorgrid up --data-dir {paths.data_dir}"
    agent = _agent_file(paths, start)
    if not _alive(agent["pid"]):
        raise HostUnreachable(
            f"the agent of {paths.data_dir} is gone",
            asked=str(agent["url"]),
            found=f"{paths.agent_file.name} names process {agent['pid']}, which has ended",
            hint=f"{start} (work under way is adopted by the next start)",
        )
    return agent


def _agent_file(paths: HostPaths, hint: str) -> dict[str, Any]:
    try:
        text = paths.agent_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise HostUnreachable(
            f"no agent runs on {paths.data_dir}",
            asked=str(paths.agent_file),
            found="no such directory" if not paths.data_dir.exists() else "no such file",
            hint=f"{hint}; or name a host with --data-dir, --url or ACTORGRID_URL",
        ) from None
    except OSError as error:
        raise HostUnreachable(
            f"cannot read {paths.agent_file}: {error.strerror}", hint="run as the user who started the agent"
        ) from error
    try:
        agent = json.loads(text)
    except ValueError:
        agent = None
    if not isinstance(agent, dict) or not isinstance(agent.get("url"), str) or not isinstance(agent.get("pid"), int):
        raise HostUnreachable(f"{paths.agent_file} does not hold an agent's address", found=text[:80], hint=hint)
    return agent


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _token(paths: HostPaths) -> str:
    try:
        return paths.token_file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise HostUnreachable(
            f"cannot read the token of {paths.data_dir}",
            found=str(error),
            hint="run as the user who started the agent, or set ACTORGRID_TOKEN",
        ) from error


def _token_of(url: str, paths: HostPaths) -> str:
    """The token of the agent on *paths* when it is the one that serves *url*; else none."""
    try:
        if _agent_file(paths, "")["url"].rstrip("/") == url.rstrip("/"):
            return _token(paths)
    except HostUnreachable:
        return ""
    return ""


def _token_of_login(url: str) -> str:
    from .logins import find_login

    login = find_login(url)
    return "" if login is None else login["key"]
