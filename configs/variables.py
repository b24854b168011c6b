"""Settings in environment variables and in a ``.env`` file.

``work.max_isolation_s`` is ``ACTORGRID_WORK__MAX_ISOLATION_S``: the prefix, then the path with two
underscores for each dot. A variable with the prefix that names no setting is refused with the nearest one that
does: a misspelt setting must not be ignored in silence.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from actorgrid.errors import ConfigError, InvalidSetting, MalformedConfig, UnknownSetting

from .files import read_text
from .origins import Layer, Origin

PREFIX = "ACTORGRID_"

OTHER_VARIABLES = {
    "ACTORGRID_URL": "where commands and clients find the agent",
    "ACTORGRID_TOKEN": "the bearer token they show it; in the environment of work, the fencing token of its grant",
    "ACTORGRID_CA_FINGERPRINT": "by which they know a cluster behind https",
    "ACTORGRID_JOIN_TOKEN": "what up --join shows, when no --token is given",
    "ACTORGRID_DATA_DIR": "the data directory, when no --data-dir is given",
    "ACTORGRID_CONFIG": "the configuration directory, when no --config is given",
    "ACTORGRID_PURE_PYTHON": "1: never load the compiled hot path",
    "ACTORGRID_REQUIRE_COMPILED": "1: fail when the hot path is not compiled",
    "ACTORGRID_PROFILE": "build: compile the hot path for profilers",
    "ACTORGRID_NVML_LIBRARY": "another libnvidia-ml to load",
    "ACTORGRID_HOST": "set by the agent for work: the host's id",
    "ACTORGRID_ATTEMPT": "set by the agent for work: the attempt's id",
    "ACTORGRID_ATTEMPT_NUMBER": "set by the agent for work: the attempt's number, from 1",
    "ACTORGRID_JOB_ID": "set by the agent for work: the job's id",
    "ACTORGRID_LEASE_ID": "set by the agent for tasks of a session: the lease of their worker",
    "ACTORGRID_CREDENTIAL_FILE": "set by the agent for work: where commands and clients in it find the agent",
    "ACTORGRID_DEVICES": "set by the agent for work: the GPUs it may use",
    "ACTORGRID_GRACE_S": "set by the agent for work that may be preempted: seconds between SIGTERM and SIGKILL",
    "ACTORGRID_RANK": "set by the agent for members of a gang: its rank, from 0",
    "ACTORGRID_WORLD_SIZE": "set by the agent for members of a gang: how many there are",
    "ACTORGRID_LOCAL_RANK": "set by the agent for members of a gang: its rank on its host",
    "ACTORGRID_LOCAL_SIZE": "set by the agent for members of a gang: how many are on its host",
    "ACTORGRID_HOST_RANK": "set by the agent for members of a gang: which of the gang's hosts this is",
    "ACTORGRID_HOST_COUNT": "set by the agent for members of a gang: on how many hosts it is",
    "ACTORGRID_HOSTS": "set by the agent for members of a gang: a host file",
    "ACTORGRID_LOCK_TOKEN": "set by lock run for its command: the lock's fencing token as a number",
}


def variable(key: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + key.upper().replace(".", "__")


def read_environment(environ: Mapping[str, str], known: list[str], structured: Iterable[str] = ()) -> Layer:
    """The settings among *environ*. Raises UnknownSetting and InvalidSetting."""
    names = {variable(key): key for key in known}
    layer = Layer()
    for name in sorted(environ):
        if not name.upper().startswith(PREFIX):
            continue
        if name in names:
            key, origin = names[name], Origin("environment", name=name)
            layer.put(key, parse(key, environ[name], origin, structured), origin)
        elif name not in OTHER_VARIABLES:
            raise _unknown(name, f"the variable {name}", [*names, *OTHER_VARIABLES])
    return layer


def read_dotenv(path: Path, known: list[str], structured: Iterable[str] = ()) -> Layer:
    """The settings in a ``.env`` file; a file that is not there says nothing. Raises ConfigError.

    The file is ours, so that a name which is no setting is refused whatever its prefix.
    """
    from io import StringIO

    from dotenv.parser import parse_stream

    layer = Layer()
    if not path.exists():
        return layer
    names = {variable(key): key for key in known}
    for binding in parse_stream(StringIO(read_text(path))):
        text = binding.original.string  # may begin with empty lines
        line = binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
        if binding.error or (binding.key is not None and binding.value is None):
            raise MalformedConfig(
                f"{path}, line {line}: not of the form NAME=value",
                asked=path.name,
                found=text.strip()[:120],
                file=str(path),
                line=line,
            )
        if binding.key is None:
            continue
        origin = Origin("dotenv", path, line, binding.key)
        if binding.key in OTHER_VARIABLES:
            raise UnknownSetting(
                f"{path}, line {line}: {binding.key} is no setting ({OTHER_VARIABLES[binding.key]})",
                asked=binding.key,
                hint="export it in the environment instead",
                file=str(path),
                line=line,
            )
        if binding.key not in names:
            raise _unknown(binding.key, f"{path}, line {line}: {binding.key}", list(names), file=str(path), line=line)
        key = names[binding.key]
        if key in layer.values:
            raise MalformedConfig(
                f"{path}, line {line}: {binding.key} is written twice",
                asked=path.name,
                found=f"the first is in line {layer.origins[key].line}",
                hint="remove one of them",
                file=str(path),
                line=line,
            )
        layer.put(key, parse(key, binding.value or "", origin, structured), origin)
    return layer


def parse(key: str, text: str, origin: Origin, structured: Iterable[str]) -> Any:
    """The value a text stands for: JSON where the setting is a list, else the text itself (its type converts it)."""
    if key not in structured:
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidSetting(
            f"{origin.place}: {key} is a list; as a text it is written in JSON ({error})",
            asked=text,
            hint="for example []",
            key=key,
            file=str(origin.file) if origin.file else None,
            line=origin.line,
        ) from None


def _unknown(name: str, what: str, candidates: list[str], **details: Any) -> ConfigError:
    bare = [candidate.removeprefix(PREFIX) for candidate in candidates]
    close = difflib.get_close_matches(name.upper().removeprefix(PREFIX), bare, n=1, cutoff=0.6)
    hint = f"did you mean {PREFIX}{close[0]}?" if close else "settings are named like ACTORGRID_WORK__MAX_ISOLATION_S"
    return UnknownSetting(f"{what} names no setting", asked=name, hint=hint, **details)
