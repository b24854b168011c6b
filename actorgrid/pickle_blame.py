"""Whom to blame when something cannot be pickled: the path through it, in words, to the part that stands in the way.

Clients use it for functions and arguments, workers for results and exceptions.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

DEPTH_MAX = 1000
"""Levels that are gone down at most; each costs one trial, and one more for each halving of its parts."""
LABELS_MAX = 8
"""Labels of a path that are shown; of a longer one the first and the last."""
SHORT_CHARS = 120
_ATOMS = frozenset({str, bytes, bytearray, int, float, complex, bool, type(None)})

Part = tuple[str, Any]
Parts = list[Part]


class Blame(NamedTuple):
    """The deepest part that cannot be pickled."""

    path: str
    """From the whole to that part: ``argument 0 → key 'a' → attribute 'lock' of Model``; empty: the whole itself."""
    part: Any
    chain: tuple[Any, ...]
    """What the path goes through: the whole first, that part last."""


def blame(
    root: Any,
    pickles: Callable[[Any], bool],
    *,
    parts: Parts | None = None,
    opaque: Callable[[Any], bool] = lambda _value: False,
) -> Blame:
    """The deepest part of *root* for which *pickles* says no; *root* is known not to.

    *parts* are those of *root*, where they have names of their own. What is *opaque* is not looked into. Of several
    that are to blame it is the first. Bounds: ``DEPTH_MAX`` levels.
    """
    labels: list[str] = []
    chain: list[Any] = [root]
    found = _first_refused(parts_of(root) if parts is None else parts, pickles, chain)
    while found is not None and len(chain) < DEPTH_MAX:
        labels.append(found[0])
        chain.append(found[1])
        found = None if opaque(found[1]) else _first_refused(parts_of(found[1]), pickles, chain)
    if len(labels) > LABELS_MAX:
        half = LABELS_MAX // 2
        labels = [*labels[:half], f"({len(labels) - LABELS_MAX} more)", *labels[-half:]]
    return Blame(" → ".join(labels), chain[-1], tuple(chain))


def _first_refused(parts: Parts, pickles: Callable[[Any], bool], chain: list[Any]) -> Part | None:
    """The first of *parts* that cannot be pickled; found by halving, so that one among a million is found, too."""
    known = {id(each) for each in chain}
    left = [part for part in parts if id(part[1]) not in known]  # what leads back to the whole says nothing new
    if not left or pickles([part for _, part in left]):
        return None
    while len(left) > 1:
        half = len(left) // 2
        first = left[:half]
        left = left[half:] if pickles([part for _, part in first]) else first
    # Each alone may be fine: what was refused was all of them (too much, or two of them that cannot go together).
    return None if pickles(left[0][1]) else left[0]


def short(value: Any) -> str:
    """The start of a value's ``repr``, whatever that does."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's repr
        text = object.__repr__(value)
    return text if len(text) <= SHORT_CHARS else text[: SHORT_CHARS - 3] + "..."


# -- what a value consists of, as far as pickling it goes


def parts_of(value: Any) -> Parts:
    """The parts that are pickled with *value*, each with what to call it. It never raises what users' code raises."""
    if type(value) in _ATOMS:
        return []  # a text says of itself that it is made of a copy of it, and so on without an end
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if isinstance(value, types.MethodType):
        return [(f"the object of method {value.__name__}", value.__self__)]
    if isinstance(value, types.ModuleType):
        scope = vars(value).items()
        return [(f"global {name!r} of {value.__name__}", part) for name, part in scope if name != "__builtins__"]
    if isinstance(value, type):
        return _of_class(value)
    if isinstance(value, functools.partial):
        return [
            ("the function of a partial", value.func),
            *((f"argument {number} of a partial", part) for number, part in enumerate(value.args)),
            *((f"argument {name} of a partial", part) for name, part in value.keywords.items()),
        ]
    if isinstance(value, (staticmethod, classmethod)):
        return [("the function", value.__func__)]
    if isinstance(value, property):
        return [(name, part) for name, part in (("get", value.fget), ("set", value.fset), ("delete", value.fdel))]
    if type(value) is dict:
        return [*_of_pairs(value.items()), *((f"the key {short(key)}", key) for key in value)]
    if type(value) in (list, tuple, set, frozenset):
        return _of_items(value)
    return _of_object(value)


def globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The globals that a function and those inside of it name, by name."""
    scope = function.__globals__
    names: set[str] = set()
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return [(name, scope[name]) for name in sorted(names) if name in scope]


def _of_function(function: types.FunctionType) -> Parts:
    name = function.__name__
    parts: Parts = []
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            parts.append((f"variable {variable!r} of {name}", cell.cell_contents))
        except ValueError:
            continue  # not bound yet
    parts += [(f"global {used!r} of {name}", part) for used, part in globals_of(function)]
    parts += [(f"a default of {name}", part) for part in function.__defaults__ or ()]
    parts += [(f"the default of {key!r} of {name}", part) for key, part in (function.__kwdefaults__ or {}).items()]
    return parts + [(f"attribute {key!r} of {name}", part) for key, part in vars(function).items()]


def _of_class(kind: type) -> Parts:
    left_out = ("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__")
    own = [(name, part) for name, part in vars(kind).items() if name not in left_out]
    return [
        *((f"base {base.__name__} of {kind.__name__}", base) for base in kind.__bases__ if base is not object),
        *(
            (f"attribute {name!r} of class {kind.__name__}", part)
            for name, part in own
            if not isinstance(part, (types.MemberDescriptorType, types.GetSetDescriptorType))
        ),
    ]


def _of_items(items: Iterable[Any]) -> Parts:
    return [(f"item {number}", item) for number, item in enumerate(items)]


def _of_pairs(pairs: Iterable[tuple[Any, Any]]) -> Parts:
    return [(f"key {short(key)}", item) for key, item in pairs]


def _of_object(value: Any) -> Parts:
    """What any other object says it is made of (PEP 307): its state, what its constructor gets, its items, its class.

    One that refuses to say is itself to blame.
    """
    name = type(value).__name__
    # As attributes first: an object whose __reduce_ex__ fails because of one of them is not to blame for that.
    parts: Parts = []
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        parts += [(f"attribute {key!r} of {name}", part) for key, part in attributes.items()]
    try:
        reduced = value.__reduce_ex__(5)
        if isinstance(reduced, tuple) and len(reduced) >= 2:
            build, given, state, items, pairs = (*reduced, None, None, None)[:5]
            if not isinstance(value, type) and isinstance(given, tuple):
                parts += _of_rebuilding(name, build, given)
            parts += _of_state(name, state)
            parts += _of_items(items) if items is not None else []
            parts += _of_pairs(pairs) if pairs is not None else []
    except Exception:  # noqa: BLE001 - a user's __reduce__ or __getstate__
        return parts
    return [*parts, (f"class {name}", type(value))]


def _of_rebuilding(name: str, build: Any, given: tuple[Any, ...]) -> Parts:
    values = [(number, part) for number, part in enumerate(given) if not isinstance(part, type)]
    if isinstance(build, type) or getattr(build, "__name__", "") in ("__newobj__", "__newobj_ex__"):
        return [(f"argument {number} of {name}", part) for number, part in values]
    return [(f"what rebuilds {name}", build), *((f"argument {n} of what rebuilds {name}", part) for n, part in values)]


def _of_state(name: str, state: Any) -> Parts:
    if state is None:
        return []
    of_slots = isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)
    layers = state if of_slots else (state,)
    parts: Parts = []
    for layer in layers:
        if isinstance(layer, dict):
            parts += [(f"attribute {key!r} of {name}", part) for key, part in layer.items()]
        elif layer is not None:
            parts.append((f"the state of {name}", layer))
    return parts
