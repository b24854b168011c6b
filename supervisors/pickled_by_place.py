"""How messages between the servers of a host are pickled: a dataclass as its values in their places.

What ``dataclass(slots=True)`` gives looks up the fields' names for each object, twice, and costs more than all else in
a small message: twice the time of this to write, and twice to read.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

_T = TypeVar("_T")


def pickled_by_place(cls: type[_T]) -> type[_T]:
    """Have objects of a frozen dataclass, whose fields are all given at its making, pickled as their values alone.

    It is made anew by its ``__init__``, so that reader and writer have to be of one version: processes of one boot.
    """
    known = fields(cls)  # type: ignore[arg-type]
    by_place = [each.name for each in known if not each.kw_only]
    by_name = [each.name for each in known if each.kw_only]
    values = attrgetter(*by_place, *by_name, "__class__")  # of two names at least, it gives a tuple
    if by_name:
        named = tuple(by_name)

        def reduce(self: _T) -> tuple[Any, ...]:
            return _made, (cls, named, *values(self)[:-1])
    else:

        def reduce(self: _T) -> tuple[Any, ...]:
            return cls, values(self)[:-1]

    cls.__reduce__ = reduce  # type: ignore[method-assign, assignment]
    return cls


def _made(cls: type[_T], named: tuple[str, ...], *values: Any) -> _T:
    by_place = len(values) - len(named)
    return cls(*values[:by_place], **dict(zip(named, values[by_place:], strict=True)))
