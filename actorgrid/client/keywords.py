"""Whose is a keyword of ``submit(fn, ..., keyword=value)``: an option of the task, or the function's own?

What only one of the two knows is that one's. What both know is refused with the way out: guessing would lose one of
them silently.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from actorgrid.errors import AmbiguousKeyword, BadRequest

from .options import DEFAULTS, OPTION_NAMES, TaskOptions, options_of

MAX_CACHED_SIGNATURES = 4096
KWARGS = "kwargs"
_UNUSUAL = ("__wrapped__", "__signature__")
_NONE: frozenset[str] = frozenset()


class Keywords(NamedTuple):
    """The keyword arguments that a callable takes."""

    positional: tuple[str, ...]
    """Its parameters in their order; empty texts for those that are given by position only."""
    only: frozenset[str] = frozenset()
    """Those that are given by keyword only."""
    any_name: bool = False
    """Whether it takes every further one: it has ``**kwargs``."""
    known: bool = True
    """Whether it can be known at all: some builtins have no signature."""

    def takes(self, name: str, by_position: int) -> bool:
        """Whether it takes *name* beside so many arguments by position, of which none is that parameter."""
        if name in self.positional:
            return self.positional.index(name) >= by_position
        return self.any_name or name in self.only

    def has(self, name: str) -> bool:
        """Whether a parameter is called so."""
        return name in self.positional or name in self.only

    @property
    def names(self) -> list[str]:
        """Those it has parameters for, in their order."""
        return [name for name in self.positional if name] + sorted(self.only)


_cache: dict[int, tuple[weakref.ref[Any], Keywords]] = {}
_cache_lock = threading.Lock()


def keywords_of(fn: Callable[..., Any]) -> Keywords:
    """The keyword arguments that *fn* takes, by its signature: through decorators, partials, methods and classes."""
    if type(fn) is types.FunctionType and not any(name in fn.__dict__ for name in _UNUSUAL):
        code = fn.__code__
        names, hidden, positional = code.co_varnames, code.co_posonlyargcount, code.co_argcount
        only = frozenset(names[positional : positional + code.co_kwonlyargcount]) if code.co_kwonlyargcount else _NONE
        taken = ("",) * hidden + names[hidden:positional]
        return Keywords(taken, only, bool(code.co_flags & inspect.CO_VARKEYWORDS))
    cached = _cache.get(id(fn))
    if cached is not None and cached[0]() is fn:
        return cached[1]
    found = _by_signature(fn)
    key = id(fn)
    try:
        alive = weakref.ref(fn, lambda _, forget=_cache.pop: forget(key, None))  # type: ignore[misc]
    except TypeError:
        return found  # no way to know when its id is given to something else
    with _cache_lock:
        if len(_cache) >= MAX_CACHED_SIGNATURES:
            _cache.clear()
        _cache[key] = (alive, found)
    return found


def _by_signature(fn: Callable[..., Any]) -> Keywords:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return Keywords((), known=False)
    kinds = inspect.Parameter
    return Keywords(
        tuple(
            "" if one.kind is kinds.POSITIONAL_ONLY else one.name
            for one in parameters
            if one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        ),
        frozenset(one.name for one in parameters if one.kind is kinds.KEYWORD_ONLY),
        any(one.kind is kinds.VAR_KEYWORD for one in parameters),
    )


def divide(
    fn: Callable[..., Any], by_position: int, given: Mapping[str, Any], base: TaskOptions = DEFAULTS
) -> tuple[TaskOptions, dict[str, Any]]:
    """*given* as changes to *base*, options, and keyword arguments of *fn*, which gets so many *by_position* as well.

    ``kwargs`` holds further ones of the function, unless it has a parameter of that name itself. Raises
    AmbiguousKeyword for one that both would take, BadRequest for one that neither does.
    """
    if not given:
        return base, {}
    own = keywords_of(fn)
    options: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    for name, value in given.items():
        if name == KWARGS:
            if own.has(name) and own.takes(name, by_position):
                raise ambiguous(fn, name, "holds keyword arguments for submit")
        elif name in OPTION_NAMES:
            if own.takes(name, by_position):
                raise ambiguous(fn, name, "is an option of the task")
            options[name] = value
        elif not own.known or own.any_name or own.has(name):
            kwargs[name] = value
        else:
            raise _unknown(fn, name, value, own)
    more = given.get(KWARGS)
    if more:
        twice = kwargs.keys() & dict(more).keys()
        if twice:
            raise BadRequest(f"the keyword argument {min(twice)!r} is given twice", asked=f"kwargs={more!r}"[:200])
        kwargs.update(more)
    if base is DEFAULTS:
        return options_of(options), kwargs
    return base.changed(**options) if options else base, kwargs


def refuse_words(fn: Callable[..., Any], by_position: int, words: Iterable[str], verb: str) -> None:
    """Raise AmbiguousKeyword if *fn* has a parameter called as one of *words*, which were said to *verb*."""
    own = keywords_of(fn)
    for word in words:
        if own.has(word) and own.takes(word, by_position):
            raise ambiguous(fn, word, f"is for {verb} itself")


def ambiguous(fn: Callable[..., Any], name: str, meaning: str) -> AmbiguousKeyword:
    """The error for a keyword of two meanings."""
    called = name_of(fn)
    is_option = name in OPTION_NAMES
    option = f"for the option: client.options({name}=...).submit({called}, ...); " if is_option else ""
    how = f"client.options().submit({called}, ..., {name}=...)"
    if not is_option and name != KWARGS:
        how = f"functools.partial({called}, {name}=...)"
    return AmbiguousKeyword(
        f"{name}= {meaning}, and a keyword argument that {called} takes as well",
        asked=f"{name}=",
        hint=f"{option}for {called}'s own: {how}",
    )


def _unknown(fn: Callable[..., Any], name: str, value: Any, own: Keywords) -> BadRequest:
    near = difflib.get_close_matches(name, [*OPTION_NAMES, *own.names], 1)
    takes = f"{name_of(fn)} takes {', '.join(own.names) or 'none'}"
    return BadRequest(
        f"{name_of(fn)} has no parameter {name!r}, and there is no option of that name",
        asked=f"{name}={value!r}"[:200],
        found=f"{takes}; options: {', '.join(OPTION_NAMES)}",
        hint=f"did you mean {near[0]}?" if near else "check the spelling",
    )


def name_of(fn: Any) -> str:
    """What people call *fn*: its own name, that of what a partial is made of, or its class's."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))
