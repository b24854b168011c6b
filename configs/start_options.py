"""What ``actorgrid up`` was told at earlier starts on a data directory (start.json).

A host that was started with ``--gpus 4`` is a host of four GPUs at its next start, too. The flags are a layer of
configuration of the lowest rank: they stand in for the default only, so that a file, a variable or a new flag that says
otherwise wins. Beside them stands how every setting was at the last start, so that the next one can say what is
different. ``cluster.listen`` is not among them: cluster.json holds where a member is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actorgrid.errors import MalformedConfig

FILE_NAME = "start.json"
MAX_FILE_BYTES = 2**20
FORMAT = 1
NOT_KEPT = frozenset({"cluster.listen"})


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting that was given to ``up``: its text, and how the person wrote it (``--gpus 4``)."""

    text: str
    written: str


@dataclass(frozen=True, slots=True)
class SettingAtStart:
    """How a setting that is not at its default was at a start: its value, as JSON has it, and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of one start, by dotted keys."""

    flags: dict[str, Flag] = field(default_factory=dict)
    settings: dict[str, SettingAtStart] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """The file's content."""
        record = {
            "format": FORMAT,
            "flags": {key: {"text": flag.text, "written": flag.written} for key, flag in self.flags.items()},
            "settings": {key: {"value": held.value, "origin": held.origin} for key, held in self.settings.items()},
        }
        return (json.dumps(record, indent=1) + "\n").encode()

    def followed_by(self, flags: dict[str, Flag], settings: dict[str, SettingAtStart], forget: bool) -> StartOptions:
        """The options of the next start: these flags and those given to it; *forget*: only those given to it."""
        kept = {} if forget else self.flags
        return StartOptions({**kept, **{key: flag for key, flag in flags.items() if key not in NOT_KEPT}}, settings)

    def taken_over(self, given: set[str], settings: dict[str, SettingAtStart]) -> list[str]:
        """Flags of earlier starts that hold at one that was *given* others and has *settings*, as they were written."""
        return [
            flag.written
            for key, flag in self.flags.items()
            if key not in given and key in settings and settings[key].origin == origin_of(flag)
        ]

    def differences(self, given: set[str], settings: dict[str, SettingAtStart]) -> list[str]:
        """A sentence for each setting that is not as at this start, though nobody said so with a flag now."""
        found = []
        for key in sorted((self.settings.keys() | settings.keys()) - given - NOT_KEPT):
            was, is_now = self.settings.get(key), settings.get(key)
            if (was and was.value) != (is_now and is_now.value):
                found.append(f"{key} is {_said(is_now)}; at the last start it was {_said(was)}")
        return found if self.settings or self.flags else []


def origin_of(flag: Flag) -> str:
    """The origin, as ``config list`` shows it, of a value that an earlier start was given."""
    return f"{flag.written} (an earlier start)"


def _said(held: SettingAtStart | None) -> str:
    return "at its default" if held is None else f"{json.dumps(held.value)} ({held.origin})"


def last_start(data_dir: Path) -> StartOptions:
    """The options of the last start on this directory; none for a directory without a start. Raises MalformedConfig."""
    path = data_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(MAX_FILE_BYTES))
        return StartOptions(
            {key: Flag(str(flag["text"]), str(flag["written"])) for key, flag in record["flags"].items()},
            {key: SettingAtStart(held["value"], str(held["origin"])) for key, held in record["settings"].items()},
        )
    except (FileNotFoundError, NotADirectoryError):
        return StartOptions()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedConfig(
            f"{path} cannot be read: {error}",
            asked=str(path),
            hint="actorgrid up --forget starts without it and writes it anew; give the flags of the host again",
            file=str(path),
        ) from error
