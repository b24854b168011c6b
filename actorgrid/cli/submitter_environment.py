"""Which variables of the person who submits work travel with it, so that it runs as it would have run here.

A shell's environment is made of three things: what programs are told by (PATH, VIRTUAL_ENV, CUDA_HOME, one's own), what
belongs to this login and dies with it, and secrets. The first travels. The ledger keeps a job's environment on every
host's disk, and shows it to whoever may see the job: secrets go there only by name (``--env NAME``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from actorgrid.errors import BodyTooLarge

BYTES_MAX = 64 * 1024
"""Of all names and values together: a job's environment is written into the ledger, on every host."""
LARGEST_SHOWN = 3

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SECRET = re.compile(
    r"(^|_)(SECRET|TOKEN|PASSWORD|PASSWD|PASS|PASSPHRASE|CREDENTIALS?|APIKEY|AUTH)(_|$)"
    r"|(API|ACCESS|PRIVATE|SECRET|ENCRYPTION|SIGNING|ACCOUNT)_?KEY(_|$)|(^|_)KEY$|CONNECTION_STRING|^PG(PASSFILE|PASSWORD)$",
    re.IGNORECASE,
)
_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]+@", re.IGNORECASE)

_OF_THIS_LOGIN = frozenset(
    {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "PS1", "PROMPT_COMMAND", "STY", "TMUX", "TMUX_PANE", "WINDOWID"}
    | {"SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "GPG_AGENT_INFO", "GPG_TTY"}
    | {"DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "XAUTHORITY", "MAIL", "INVOCATION_ID"}
    | {"JOURNAL_STREAM", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "WATCHDOG_PID", "WATCHDOG_USEC"}
)
# Loaded into, or obeyed by, every process that starts: what wraps this shell (a debugger, a recorder) is not for work.
_OF_THIS_PROCESS = frozenset({"LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "PYTHONHOME", "PYTHONSTARTUP", "BASH_ENV", "ENV"})
# Which devices, and which rank of what: the agent says so for work, and what a job around us was given is not it.
_SAID_BY_THE_AGENT = frozenset(
    {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
    | {"GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "CUDA_DEVICE_ORDER", "ZE_FLAT_DEVICE_HIERARCHY"}
    | {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT"}
)
_NEVER = _OF_THIS_LOGIN | _OF_THIS_PROCESS | _SAID_BY_THE_AGENT
_NEVER_BEGINNINGS = ("ACTORGRID_", "_ACTORGRID_", "PET_", "BASH_FUNC_")


@dataclass(frozen=True, slots=True)
class SubmitterEnvironment:
    """What travels, and the names that were left here because they look like secrets."""

    variables: dict[str, str]
    secrets: tuple[str, ...]


def submitter_environment(environ: Mapping[str, str], named: Mapping[str, str]) -> SubmitterEnvironment:
    """The part of *environ* that travels; *named* (``--env``) are on their way already, whatever they are called.

    Raises BodyTooLarge, with the largest ones, beyond ``BYTES_MAX``.
    """
    variables, secrets = {}, []
    for name, value in sorted(environ.items()):
        if name in named or name in _NEVER or name.startswith(_NEVER_BEGINNINGS) or not _NAME.match(name):
            continue
        if not _is_text(value):
            continue
        if _SECRET.search(name) or _WITH_PASSWORD.match(value):
            secrets.append(name)
        else:
            variables[name] = value
    sizes = {name: len(name) + len(value.encode()) + 2 for name, value in variables.items()}
    if sum(sizes.values()) > BYTES_MAX:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST_SHOWN]
        raise BodyTooLarge(
            f"the environment here is {sum(sizes.values())} bytes; at most {BYTES_MAX} travel with a job",
            asked="--env-from-me",
            found="the largest: " + ", ".join(f"{name} ({sizes[name]} bytes)" for name in largest),
            hint="unset those, or --no-env-from-me with --env NAME for what the job needs",
        )
    return SubmitterEnvironment(variables, tuple(secrets))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8: JSON cannot carry them
        return False
    return True
