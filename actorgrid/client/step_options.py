"""Options of steps: those of tasks, and their own; as they are given in Python, and as they are sent."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from actorgrid.errors import AmbiguousKeyword, BadRequest

from .keywords import keywords_of, name_of
from .options import TaskOptions

FORWARDED = (
    "gpus",
    "gpu_memory",
    "gpu_models",
    "gpu_affinity",
    "gpu_profile",
    "gpu_topology",
    "cpus",
    "memory",
    "retries",
    "timeout",
    "env",
    "pool",
    "gang",
    "spread",
    "min_isolation",
)
"""Options that a step has as a task has them."""
OWN = (
    "id",
    "after",
    "runtime_s",
    "output_bytes",
    "cost",
    "needs",
    "node",
    "collocated",
    "cache",
    "extends",
    "trigger",
    "checkpoint",
    "stream",
)
STEP_OPTIONS = (*FORWARDED, *OWN)
_AS_FIELD = {"gpu_memory": "gpu_memory_bytes", "memory": "memory_bytes", "timeout": "max_execution_time_s"}
PLAIN_OPTIONS = TaskOptions()


def options_and_keywords(fn: Any, by_position: int, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """*given* as options of the step and keywords of *fn*. Raises AmbiguousKeyword, BadRequest."""
    own = keywords_of(fn)
    options: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    for name, value in given.items():
        if name in STEP_OPTIONS:
            if own.has(name) and own.takes(name, by_position):
                raise AmbiguousKeyword(
                    f"{name}= is an option of the step, and a keyword argument that {name_of(fn)} takes as well",
                    asked=f"{name}=",
                    hint=f"dag.options({name}=...).add(...) for the option, dag.options().add(..., {name}=...) for the"
                    " function's own",
                )
            options[name] = value
        elif not own.known or own.any_name or own.has(name):
            kwargs[name] = value
        else:
            near = difflib.get_close_matches(name, [*STEP_OPTIONS, *own.names], n=1)
            raise BadRequest(
                f"{name_of(fn)} has no parameter {name!r}, and steps have no such option",
                asked=f"{name}={value!r}"[:200],
                found=f"options: {', '.join(STEP_OPTIONS)}",
                hint=f"did you mean {near[0]}?" if near else "check the spelling",
            )
    return options, kwargs


def check_options(options: Mapping[str, Any]) -> None:
    """Raises BadRequest for one that steps have not."""
    for name in options:
        if name not in STEP_OPTIONS:
            near = difflib.get_close_matches(name, STEP_OPTIONS, n=1)
            raise BadRequest(
                f"steps have no option {name!r}",
                asked=f"{name}={options[name]!r}"[:200],
                found=f"options: {', '.join(STEP_OPTIONS)}",
                hint=f"did you mean {near[0]}?" if near else "check the spelling",
            )


def of_the_whole_graph(environment: object) -> BadRequest:
    """The error for a Python environment that a step is given."""
    return BadRequest(
        "the Python environment is one of the whole graph",
        asked=f"env={environment!r}"[:200],
        hint="Dag(name, env=...), or client.dag(name, env=...); a step's env is variables: {'NAME': 'value'}",
    )


def fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a step's request that options are."""
    cost = dict(options.pop("cost", None) or {})
    needs = dict(options.pop("needs", None) or {})
    for name, amount in cost.items():
        if name in ("runtime_s", "output_bytes", "cpus", "memory", "gpus", "gpu_memory"):
            options.setdefault(name, amount)
        elif isinstance(amount, int | float):
            needs[name] = int(amount)
        else:
            raise BadRequest(f"the cost {name!r} is no amount", asked=f"{name}={amount!r}"[:200])
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or (name in FORWARDED and value == getattr(PLAIN_OPTIONS, name)):
            continue
        if name == "env" and not isinstance(value, Mapping):
            raise of_the_whole_graph(value)
        elif isinstance(value, Mapping):
            fields[_AS_FIELD.get(name, name)] = dict(value)
        elif isinstance(value, Collection | Iterator) and not isinstance(value, str | bytes):
            fields[_AS_FIELD.get(name, name)] = list(value)
        elif name == "after":
            fields[name] = [value]
        else:
            fields[_AS_FIELD.get(name, name)] = value
    if needs:
        fields["needs"] = needs
    return fields
