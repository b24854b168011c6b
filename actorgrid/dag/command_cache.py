"""By what a command's files are found again: its words, what it leaves, and the contents of the files that it reads.

What is around it (the environment, variables, the working directory that was sent) and the files of the steps that it
takes from are added where the graph is led on (``actors/jobs/step_cache.py``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from actorgrid.errors import InvalidGraph
from actorgrid.output_paths import checked

FORMAT = "actorgrid command 1"
MODES = ("none", "inputs", "refresh")
FILES_MAX = 10_000
"""Files that one command reads, those in folders included."""


def with_command_cache(document: Mapping[str, Any], base: str, *, refresh: bool = False) -> dict[str, Any]:
    """A graph's document in which the words ``cache`` and ``files`` of commands are what hosts know of them.

    *base* is the folder from which files are named where a step has no directory of its own. *refresh*: nothing is
    taken over; what is computed is kept. Raises InvalidGraph.
    """
    steps = document.get("steps")
    found = {name: value for name, value in document.items() if name != "cache"}
    of_all = _mode(document.get("cache", "none"), "the graph")
    if not isinstance(steps, list) or (of_all == "none" and not any(map(_speaks_of_it, steps))):
        return found
    found["steps"] = [_step(step, of_all, base, refresh) if isinstance(step, dict) else step for step in steps]
    return found


def command_cache(step: Mapping[str, Any], mode: str, base: str) -> dict[str, Any] | None:
    """The field ``cache`` of a command, which reads ``files``; ``None``: nothing is taken over. Raises InvalidGraph."""
    if mode == "none":
        return None
    id, outputs = str(step.get("id", "")), step.get("outputs")
    if not outputs or not isinstance(outputs, list):
        raise InvalidGraph(
            f"step {id} cannot be taken over: nobody knows what it leaves",
            asked=f"cache: {mode}",
            hint="name the files and folders that it writes: outputs: [model.bin, plots/]",
        )
    digest = hashlib.sha256()
    for part in (
        FORMAT,
        "words",
        *_words(step.get("command")),
        "outputs",
        *sorted(_plain(id, each) for each in outputs),
    ):
        _add(digest, part.encode("utf-8", "surrogateescape"))
    files = step.get("files") or ()
    for path, content in _contents(id, [files] if isinstance(files, str) else files, str(step.get("cwd") or base)):
        _add(digest, path.encode("utf-8", "surrogateescape"))
        _add(digest, content)
    takes = [each if isinstance(each, str) else str(each.get("step")) for each in step.get("inputs") or ()]
    return {"call": digest.hexdigest(), "takes": takes, **({"refresh": True} if mode == "refresh" else {})}


def _speaks_of_it(step: object) -> bool:
    return isinstance(step, dict) and ("cache" in step or "files" in step)


def _step(step: Mapping[str, Any], of_all: str, base: str, refresh: bool) -> dict[str, Any]:
    plain = {name: value for name, value in step.items() if name not in ("cache", "files")}
    if isinstance(step.get("cache"), Mapping) or "command" not in step:
        return {**plain, **({"cache": step["cache"]} if "cache" in step else {})}
    own = _mode(step.get("cache", of_all if step.get("outputs") else "none"), f"step {step.get('id')}")
    cache = command_cache(step, "refresh" if refresh and own == "inputs" else own, base)
    return plain if cache is None else {**plain, "cache": cache}


def _mode(mode: object, of: str) -> str:
    mode = {False: "none", True: "inputs", None: "none"}.get(mode, mode) if isinstance(mode, bool | None) else mode
    if mode not in MODES:
        raise InvalidGraph(f"{of}: there is no such cache", asked=str(mode)[:100], hint=", ".join(MODES))
    return str(mode)


def _words(command: object) -> list[str]:
    if isinstance(command, str):
        return ["sh", "-c", command]
    return [str(word) for word in command] if isinstance(command, Sequence) else []


def _plain(id: str, path: object) -> str:
    try:
        return checked(str(path))
    except ValueError as error:
        raise InvalidGraph(f"step {id}: {error}", asked=str(path)[:200]) from None


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "big"))
    digest.update(part)


def _contents(id: str, named: Sequence[Any], base: str) -> Iterator[tuple[str, bytes]]:
    """Each file with the digest of what is in it, by the paths that were named."""
    count = 0
    for name in sorted(map(str, named)):
        for path in _files(id, name, Path(base) / name):
            count += 1
            if count > FILES_MAX:
                raise InvalidGraph(f"step {id} reads too many files", found=f"more than {FILES_MAX}")
            try:
                with open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            except OSError as error:
                raise InvalidGraph(f"step {id}: {path} cannot be read: {error.strerror}", asked=name) from None
            yield f"{name}\0{os.path.relpath(path, Path(base) / name)}", content


def _files(id: str, name: str, path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(Path(at) / each for at, _, names in os.walk(path) for each in names)
    if not path.exists():
        raise InvalidGraph(
            f"step {id} reads a file that is not there",
            asked=name,
            found=str(path),
            hint="they are looked at before the graph is sent; of one that another step leaves, name that in inputs",
        )
    return [path]
