"""The file with what the steps of a graph run, made from the calls that were added to a Dag."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from actorgrid.dag.bundle import BundleWriter
from actorgrid.errors import InvalidGraph
from actorgrid.import_environment import of_this_process, with_environment

from .cached_calls import CachedCalls
from .command_steps import cached_command
from .dag import cache_mode
from .pickling import dumps, function_code
from .step_pickler import PartNames, PartRef, StepPickler, plain_part

if TYPE_CHECKING:
    from .dag import Dag, _Step

BUNDLE_BYTES_MAX = 2**30
NO_CACHE = "ACTORGRID_NO_CACHE"
"""Set to anything but 0, no result is taken over; what is computed is kept."""


def bundle_of(
    dag: Dag,
    steps: list[_Step],
    directory: bool,
    installed: bool,
    cache: str,
    relative: bool,
    refresh: bool = False,
    working_dir: str = "",
) -> tuple[bytes, list[dict[str, Any]]]:
    """The file with all calls and values, and the steps with where in it theirs are, and whose values they take.
    *cache*: of steps that say nothing of it. *relative*: each call says its own number, so that a worker can tell where
    in the whole graph those are that it names. *refresh*: nothing is taken over; what is computed is kept.
    *working_dir*: the directory that is sent along."""
    requests = [dict(step.request) for step in steps]
    modes = [
        cache_mode(request.pop("cache", "none" if request.get("extends") or request.get("stream") else cache))
        if request["kind"] == "function"
        else "none"
        for request in requests
    ]
    refresh = refresh or os.environ.get(NO_CACHE, "") not in ("", "0")
    if refresh:
        modes = ["refresh" if mode == "inputs" else mode for mode in modes]
    for request in requests:
        if request["kind"] == "command":
            cached_command(request, cache, refresh, working_dir)
    with_cache = any(mode != "none" for mode in modes)
    if all(step.call is None and step.request["kind"] != "value" for step in steps):
        return b"", requests
    cached = CachedCalls(steps)
    writer = BundleWriter()
    places: dict[int, tuple[int, int]] = {}
    functions: dict[bytes, tuple[int, int]] = {}
    for number, step in enumerate(steps):
        request = requests[number]
        names = PartNames(dag, steps, places)

        def make(buffer: io.BytesIO, names: PartNames = names) -> StepPickler:
            return StepPickler(buffer, names)

        if request["kind"] == "value":
            part = dumps(step.value, f"the value {request['id']}", make=make)
            if names.taken:
                raise InvalidGraph(f"the value {request['id']} holds a step", hint="add a step that takes it")
        elif step.call is not None:
            code = function_code(step.call.fn)
            if code.fn_id not in functions:
                functions[code.fn_id] = writer.add(code.code)
            fn = PartRef(functions[code.fn_id], number if relative else None)
            what = f"step {request['id']}: its arguments"
            # What is kept for later, and what others take that are kept, is told with its digest.
            how = {**step.how, "digest": True} if with_cache else step.how
            for name in ("extends", "stream"):
                if request.get(name):
                    how = {**how, name: True}
            plain = plain_part(fn, step.call.args, step.call.kwargs, how, names)
            part = dumps([fn, *step.call[1:], how], what, make=make) if plain is None else plain
            if names.streams and request["kind"] == "inline":
                raise InvalidGraph(f"{request['id']} is inline and takes items", hint="dag.add, in place of dag.inline")
            if names.streams:
                request["streams"] = [steps[other].request["id"] for other in names.streams]
            if modes[number] != "none" and not names.streams:
                request["cache"] = cached.of_step(number, refresh=modes[number] == "refresh")
        else:
            continue
        places[number] = writer.add(part)
        request["call"] = {"offset": places[number][0], "size": places[number][1]}
        if request["kind"] != "value":
            request["inputs"] = [steps[other].request["id"] for other in names.taken]
        if writer.size > BUNDLE_BYTES_MAX:
            raise InvalidGraph(
                "what the steps run is too large", found=f"{writer.size} bytes", hint="pass paths of large files"
            )
    content = writer.content()
    return with_environment(content, of_this_process(directory, installed)), requests
