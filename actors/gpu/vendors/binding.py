"""Loads a vendor's Python binding with care: some print, some raise KeyError, none may take others with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class BindingFailed(Exception):
    """A binding cannot be used. ``outcome`` is one of OUTCOMES; the text is for people."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def load(binding: Callable[[], Any], module: str, extra: str) -> Any:
    """What *binding* imports, which is *module*, in silence. Raises BindingFailed.

    Bindings look for their library at import, and what they then raise is whatever came: pyzes an OSError, amdsmi a
    KeyError after two lines on stdout (the library is not there) or an AttributeError (it is older than the binding).
    """
    try:
        return quietly(binding)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            raise BindingFailed("no_library", f"{module} lacks {error.name}") from error
        name = module.partition(".")[0]
        raise BindingFailed("no_library", f"{name} is not installed; pip install 'actorgrid[{extra}]'") from error
    except AttributeError as error:
        raise BindingFailed("version_mismatch", f"the library is older than {module}: {error}") from error
    except Exception as error:
        raise BindingFailed("no_library", f"{module} does not load: {type(error).__name__}: {error}") from error


def quietly(call: Callable[[], T]) -> T:
    """What *call* gives; what it prints in Python goes nowhere (a child's own output is closed anyway)."""
    # A real file: pyrsmi asks stderr for its number.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        return call()
