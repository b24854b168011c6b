"""The options of ``sbatch`` and ``srun``, from the command line and ``#SBATCH`` lines; which mean anything here."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

import click

LINES_MAX = 10_000
"""Of a script, that are looked at for directives."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)
MEANT: dict[str, str] = {
    "--job-name": "-J",
    "--output": "-o",
    "--error": "-e",
    "--time": "-t",
    "--mem": "",
    "--mem-per-cpu": "",
    "--mem-per-gpu": "",
    "--cpus-per-task": "-c",
    "--cpus-per-gpu": "",
    "--ntasks": "-n",
    "--nodes": "-N",
    "--ntasks-per-node": "",
    "--gres": "",
    "--gpus": "-G",
    "--gpus-per-node": "",
    "--gpus-per-task": "",
    "--array": "-a",
    "--dependency": "-d",
    "--chdir": "-D",
    "--export": "",
    "--partition": "-p",
    "--nice": "",
    "--priority": "",
    "--signal": "",
    "--deadline": "",
    "--comment": "",
    "--mail-type": "",
    "--mail-user": "",
    "--account": "-A",
    "--wrap": "",
    "--container-image": "",
    "--container-mounts": "",
}
"""Options with a value that mean something here, with their short names."""
MEANT_FLAGS = {"--requeue": "", "--parsable": "", "--wait": "-W", "--pty": ""}
NOT_MEANT: dict[str, str] = {
    "--qos": "-q",
    "--constraint": "-C",
    "--nodelist": "-w",
    "--exclude": "-x",
    "--begin": "-b",
    "--licenses": "-L",
    "--reservation": "",
    "--hint": "",
    "--threads-per-core": "",
    "--ntasks-per-core": "",
    "--ntasks-per-socket": "",
    "--ntasks-per-gpu": "",
    "--sockets-per-node": "",
    "--cores-per-socket": "",
    "--tmp": "",
    "--open-mode": "",
    "--input": "-i",
    "--clusters": "-M",
    "--profile": "",
    "--gres-flags": "",
    "--gpu-bind": "",
    "--gpu-freq": "",
    "--mem-bind": "",
    "--cpu-bind": "",
    "--distribution": "-m",
    "--switches": "",
    "--wckey": "",
    "--core-spec": "-S",
    "--time-min": "",
    "--mpi": "",
    "--bb": "",
}
"""Options with a value that mean nothing here: they are said by name."""
NOT_MEANT_FLAGS = {"--hold": "-H", "--no-requeue": "", "--no-kill": "-k", "--overcommit": "-O"}
MAY_HAVE_VALUE = ("--exclusive", "--propagate", "--get-user-env")
_ALONE = {"--nice": "100", **dict.fromkeys(MAY_HAVE_VALUE, "")}
"""Options that may have a value, which stands behind ``=`` and is never the next word; what they say without one."""
_TAKE_A_WORD = {word for options in (MEANT, NOT_MEANT) for pair in options.items() for word in pair} - {"", "--nice"}
SILENT_FLAGS = {"--quiet": "-Q", "--verbose": "-v", "--label": "-l", "--unbuffered": "-u", "--spread-job": ""}
"""What changes nothing that anybody waits for."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise click.UsageError(message)


def _parser() -> _Parser:
    parser = _Parser(prog="sbatch", add_help=False, allow_abbrev=False)
    for options in (MEANT, NOT_MEANT):
        for name, short in options.items():
            names = (short, name) if short else (name,)
            parser.add_argument(*names)
    for flags in (MEANT_FLAGS, NOT_MEANT_FLAGS, SILENT_FLAGS):
        for name, short in flags.items():
            parser.add_argument(*((short, name) if short else (name,)), action="store_true", default=None)
    for name in MAY_HAVE_VALUE:
        parser.add_argument(name)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser


class Asked:
    """What was asked for, by the names of the options. ``words``: the script or command, with its arguments."""

    def __init__(self, found: argparse.Namespace) -> None:
        self._found = found
        self.words: list[str] = [word for place, word in enumerate(found.words) if place or word != "--"]

    def __getitem__(self, option: str) -> Any:
        """The value of an option; ``None`` where it was not given."""
        return getattr(self._found, option.lstrip("-").replace("-", "_"), None)

    @property
    def without_meaning(self) -> list[str]:
        """The options that were given and mean nothing here."""
        return [name for name in (*NOT_MEANT, *NOT_MEANT_FLAGS, *MAY_HAVE_VALUE) if self[name] is not None]


def read_options(words: Sequence[str], script: str | None = None) -> Asked:
    """The options of a command line, which count before those in *script*. Raises UsageError."""
    parser = _parser()
    found = argparse.Namespace()
    for line, said in directives(script or ""):
        try:
            more = parser.parse_args(_spelled_out(said), found)
        except click.UsageError as error:
            raise click.UsageError(f"line {line}: #SBATCH {shlex.join(said)}: {error.message}") from None
        if more.words:
            raise click.UsageError(f"line {line}: #SBATCH {shlex.join(said)}: {more.words[0]!r} is no option")
    return Asked(parser.parse_args(_spelled_out(words), found))


def _spelled_out(words: Sequence[str]) -> list[str]:
    """These words, where each option that may have a value has one: what follows ``--exclusive`` is the script."""
    spelled: list[str] = []
    takes_a_word = False
    for place, word in enumerate(words):
        if not takes_a_word and (not word.startswith("-") or word in ("-", "--")):
            return [*spelled, *words[place:]]
        spelled.append(f"{word}={_ALONE[word]}" if not takes_a_word and word in _ALONE else word)
        takes_a_word = not takes_a_word and word in _TAKE_A_WORD
    return spelled


def directives(script: str) -> list[tuple[int, list[str]]]:
    """The words behind each ``#SBATCH`` before the first command, with the number of the line. Raises UsageError."""
    found = []
    for number, line in enumerate(script.splitlines()[:LINES_MAX], 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH") and (len(line) == 7 or line[7].isspace()):
            try:
                found.append((number, shlex.split(line[7:], comments=True)))
            except ValueError as error:
                raise click.UsageError(f"line {number}: {line.strip()[:80]}: {error}") from None
    return found


def seconds_of(text: str) -> float | None:
    """Slurm's lengths of time in seconds: ``30`` (minutes), ``30:00``, ``1:30:00``, ``2-12``, ``1-02:03:04``; ``None``:
    no limit. Raises UsageError."""
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise click.UsageError(f"--time {text!r}: write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS")
    days, first, second, third = (None if part is None else int(part) for part in found.groups())
    if days is not None:
        return float(days * 86_400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0))
    if second is None:
        return (first or 0) * 60.0
    if third is None:
        return (first or 0) * 60.0 + second
    return (first or 0) * 3600.0 + second * 60 + third


def mebibytes_of(option: str, text: str) -> float:
    """Slurm's amounts of memory in MiB, which is what they are in without a unit. Raises UsageError."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise click.UsageError(f"{option} {text!r}: write a number of megabytes, or one with K, M, G or T")
    return float(found[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[found[2].upper()]


def whole(option: str, text: str | None) -> int | None:
    """A number of at least 1; of ``2-4``, the first. ``None`` stays. Raises UsageError."""
    if text is None:
        return None
    first = text.partition("-")[0]
    if not first.isdecimal() or not int(first):
        raise click.UsageError(f"{option} {text!r} is no number of at least 1")
    return int(first)


def gpus_of(option: str, text: str) -> tuple[str, int]:
    """The model (empty: any) and number of ``2``, ``a100:2``, ``gpu:2``, ``gpu:a100:2``. Raises UsageError."""
    parts = [part for part in text.split(":") if part.lower() != "gpu"]
    number = parts.pop() if parts and parts[-1].isdecimal() else "1"
    if len(parts) > 1:
        raise click.UsageError(f"{option} {text!r}: write a number, a model and a number, or gpu:a100:2")
    return parts[0] if parts else "", int(number)
