"""Commands as steps of a graph that is made in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actorgrid.dag.command_cache import command_cache
from actorgrid.dag.command_rounds import with_rounds
from actorgrid.errors import BadRequest, InvalidGraph

from .step_options import check_options

if TYPE_CHECKING:
    from .dag import Dag, Step


def add_command(dag: Dag, command: Sequence[str], options: dict[str, Any]) -> Step[Any]:
    """Add a command to *dag*; gives the step, of a loop the merge of its rounds. Raises BadRequest, InvalidGraph."""
    if isinstance(command, str | bytes):
        raise BadRequest("a command is a list of words", asked=repr(command)[:80], hint='["sh", "-c", "..."]')
    words = [str(word) for word in command]
    request: dict[str, Any] = {"kind": "command", "command": words}
    cwd, until, rounds = (options.pop(name, None) for name in ("cwd", "until", "rounds"))
    if cwd is not None:
        request["cwd"] = str(cwd)
    inputs = _listed(options.pop("inputs", None))
    if inputs:
        request["inputs"] = [dag._named(each) for each in inputs]
    for name in ("outputs", "files"):
        named = [str(each) for each in _listed(options.pop(name, None))]
        if named:
            request[name] = named
    cache = options.pop("cache", None)
    if cache is not None:
        request["cache_mode"] = cache
    check_options(options)
    called = words[0].rpartition("/")[2] if words else "command"
    if until is None and rounds is None:
        return dag._add(called, request, options)
    id = options.pop("id", None) or dag._new_id(called)
    rounds_of = with_rounds({"steps": [{**request, "id": id, "repeat": {"until": until, "rounds": rounds}}]})["steps"]
    env = dict(options.pop("env", None) or {})
    first: dict[str, Any] = {name: options.pop(name) for name in ("after", "trigger") if name in options}
    for each in rounds_of[:-1]:
        own = {name: value for name, value in each.items() if name not in ("id", "env", "when")}
        step = dag._add(each["id"], own, {**options, **first, "id": each["id"], "env": {**env, **each["env"]}})
        dag._steps[step.number].request.setdefault("when", []).extend(each.get("when", ()))
        first = {}
    return dag._merge([dag.step(each["id"]) for each in rounds_of[:-1]], id, last=True)


def cached_command(request: dict[str, Any], of_graph: str, refresh: bool, base: str = "") -> None:
    """Put into a command's *request* what hosts know of its cache and files. Raises InvalidGraph, BadRequest."""
    from .dag import cache_mode

    own = request.pop("cache_mode", None)
    mode = cache_mode(own if own is not None else of_graph if request.get("outputs") else "none")
    cache = command_cache(request, "refresh" if refresh and mode == "inputs" else mode, base or os.getcwd())
    request.pop("files", None)
    if cache is not None:
        request["cache"] = cache


def refuse_without_files(id: str, request: Mapping[str, Any]) -> None:
    """Raises InvalidGraph for a command that gives no files, and so no value."""
    if not request.get("outputs"):
        raise InvalidGraph(
            f"step {id} is a command and gives no value",
            asked=id,
            hint="outputs=[...] names the files that it leaves, which are its value; or name it in after=[...]",
        )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
