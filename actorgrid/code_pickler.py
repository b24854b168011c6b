"""Pickles functions and classes by value, as cloudpickle does but for two things.

cloudpickle 3.1.3 sends ``<dynamic-code>`` in place of each file's name, so that equal functions of notebook cells have
equal bytes. Who reads a traceback of a task wants the file and the line more.

It makes a class first and sets its ``__slots__`` afterwards, when that has no effect. What a task then makes of such a
class (``@dataclass(slots=True)``) has a dictionary where the client's own class has none, and cannot come back.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from types import CodeType, MemberDescriptorType
from typing import Any

import cloudpickle

_reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]


def _with_file(code: CodeType) -> tuple[Any, ...]:
    """What cloudpickle makes of *code*, with its file: the first text among the arguments of ``types.CodeType``."""
    kind, arguments = _reduce_code(code)
    at = next(index for index, argument in enumerate(arguments) if isinstance(argument, str))
    # A copy, as cloudpickle makes of names: whether two equal texts are one object must not show in the bytes.
    return kind, (*arguments[:at], "".join(code.co_filename), *arguments[at + 1 :])


_make_class = getattr(cloudpickle.cloudpickle, "_make_skeleton_class", None)


def _with_slots(kind: type, reduced: Any) -> Any:
    """What cloudpickle makes of a class, with its slots among what it is made with."""
    slots = kind.__dict__.get("__slots__")
    if not isinstance(slots, (str, tuple, list, dict, set, frozenset)):
        return reduced  # none; or an iterator, which is at its end
    if not isinstance(reduced, tuple) or reduced[0] is not _make_class:
        return reduced
    made_with, (attributes, own) = list(reduced[1]), reduced[2]
    at = next(index for index, argument in enumerate(made_with) if isinstance(argument, dict))
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    made_with[at] = {**made_with[at], "__slots__": names}
    # Its descriptors come with the slots; those of private names are under another name in the class.
    kept = {
        name: value
        for name, value in attributes.items()
        if name != "__slots__" and not (isinstance(value, MemberDescriptorType) and value.__objclass__ is kind)
    }
    return reduced[0], tuple(made_with), (kept, own), *reduced[3:]


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle.Pickler that sends the names of files with code, and the slots of classes."""

    def reducer_override(self, value: Any) -> Any:
        """What cloudpickle makes of *value*, and of a class its slots, too."""
        reduced = super().reducer_override(value)
        return _with_slots(value, reduced) if isinstance(value, type) else reduced

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _with_file})


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """*value* in pickle's protocol 5. Raises whatever the reduction of one of its parts raises."""
    buffer = io.BytesIO()
    CodePickler(buffer, protocol=5, buffer_callback=buffer_callback).dump(value)
    return buffer.getvalue()
