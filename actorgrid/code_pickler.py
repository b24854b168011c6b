"""Pickles functions by value so that their tracebacks still name the user's file, and show its lines where it is there.

cloudpickle 3.1.3 sends ``<dynamic-code>`` in place of each file's name, so that equal functions of notebook cells have
equal bytes. Who reads a traceback of a task wants the file and the line more.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle

_reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]


def _with_file(code: CodeType) -> tuple[Any, ...]:
    """What cloudpickle makes of *code*, with its file: the first text among the arguments of ``types.CodeType``."""
    kind, arguments = _reduce_code(code)
    at = next(index for index, argument in enumerate(arguments) if isinstance(argument, str))
    # A copy, as cloudpickle makes of names: whether two equal texts are one object must not show in the bytes.
    return kind, (*arguments[:at], "".join(code.co_filename), *arguments[at + 1 :])


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle.Pickler that sends the names of files with code."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _with_file})


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """*value* in pickle's protocol 5. Raises whatever the reduction of one of its parts raises."""
    buffer = io.BytesIO()
    CodePickler(buffer, protocol=5, buffer_callback=buffer_callback).dump(value)
    return buffer.getvalue()
