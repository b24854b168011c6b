"""Where the host is and what opens its door: explicit, from the environment, or from a data directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actorgrid.configs.paths import HostPaths, default_data_dir
from actorgrid.errors import HostUnreachable
from actorgrid.fencing import is_fencing_token


def locate(
    data_dir: str | os.PathLike[str] | None = None, url: str | None = None, token: str | None = None
) -> tuple[str, str]:
    """The URL and bearer token of a host; of several, separated by commas, where several were named.

    In this order: what is given; ``ACTORGRID_URL`` and ``ACTORGRID_TOKEN`` (unless *data_dir* is given); the
    running agent of *data_dir*, or of the default data directory. A token that is not given is read from the data
    directory when the agent there serves that URL; else it stays empty. Raises HostUnreachable.
    """
    if url is None and data_dir is None:
        url = os.environ.get("ACTORGRID_URL") or None
    if token is None and data_dir is None:
        token = bearer_token_in(os.environ)
    paths = HostPaths(Path(data_dir) if data_dir is not None else default_data_dir())
    if url is None:
        url = str(_running_agent(paths)["url"])
        return url, token if token is not None else _token(paths)
    if token is None:
        token = _token_of(url, paths)
    return url, token


def bearer_token_in(environ: Mapping[str, str]) -> str | None:
    """What ``ACTORGRID_TOKEN`` says to show the agent; None where it holds nothing, or the fencing token of work."""
    text = environ.get("ACTORGRID_TOKEN", "")
    return text if text and not is_fencing_token(text) else None


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
