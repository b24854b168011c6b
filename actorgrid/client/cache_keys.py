"""What a call is, as a digest of the code that it runs and the values that it takes: so the same call is found again.

Code is what a function does, not where it stands: its byte code, constants and names, defaults, what its closure
holds, and the globals that it refers to, of the user's own modules as deep as they go. What goes by its name, and
modules, are told apart by versions and files (module_digests.py). Values are pickled
without memory of what was the same object, and sets in the order of their elements' digests, so that equal values of
plain types give equal bytes in every process. Values of other types may pickle differently each time; then nothing is
found, and the call runs.

A step stands for its place among those that the call takes from: what it gave is part of the key where the graph is led
on (``actors/jobs/step_cache.py``).
"""

from __future__ import annotations

import hashlib
import io
import sys
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle

from actorgrid.code_pickler import CodePickler
from actorgrid.errors import InvalidGraph

from .module_digests import ModuleDigests

if TYPE_CHECKING:
    from .dag import Step

FORMAT = "actorgrid call 1"
_ATOMS = frozenset({int, float, str, bytes, bool, type(None), complex})
_SKIPPED = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}
)
OfStep = Callable[["Step[Any]"], Any]
"""What stands for a step: plain values."""


class CallDigests:
    """Digests of the calls of one graph; each function is looked at once. *of_step* says what stands for a step."""

    def __init__(self) -> None:
        self._digests = _Digests()

    def of_call(
        self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], of_step: OfStep, what: str, word: Any = None
    ) -> str:
        """The digest of a call, in hex; *word* is what else decides what it gives. Raises InvalidGraph, which names
        *what* it is of, where it cannot be told."""
        self._digests.of_step = of_step
        try:
            return self._digests.of((FORMAT, sys.version_info[:2], fn, args, sorted(kwargs.items()), word)).hex()
        except InvalidGraph:
            raise
        except Exception as error:
            raise InvalidGraph(
                f"{what} cannot be kept for later: what it takes has no digest",
                asked="cache='inputs'",
                found=f"{type(error).__name__}: {error}"[:200],
                hint="cache='none' for that step, or give it plain values",
            ) from error

    def resume(self, of_step: OfStep) -> None:
        """Go on with a call after another one inside of it."""
        self._digests.of_step = of_step

    def of_value(self, value: Any) -> bytes:
        """The digest of a value that holds no steps."""
        return self._digests.of(value)


def _no_step(step: Step[Any]) -> Any:
    raise InvalidGraph(f"step {step.id} cannot be a part of that", asked=step.id)


class _Digests:
    """Digests of values, each function and class once."""

    def __init__(self) -> None:
        self.of_step: OfStep = _no_step
        self.modules = ModuleDigests()
        self._code: dict[int, tuple[Any, bytes]] = {}
        self._inside: dict[int, None] = {}
        self._open: set[int] = set()  # what was met inside of itself, and is not done yet

    def of(self, value: Any) -> bytes:
        """The digest of any value."""
        buffer = io.BytesIO()
        pickler = _KeyPickler(buffer, self)
        pickler.fast = True  # without a memo: equal strings need not be one object
        pickler.dump(value)
        return hashlib.sha256(buffer.getvalue()).digest()

    def of_code(self, code: Any) -> Any:
        """What stands for a function or class: its name, or a digest of all that it is made of."""
        name = f"{getattr(code, '__module__', '')}.{getattr(code, '__qualname__', '')}"
        if id(code) in self._inside:
            self._open.add(id(code))
            return "recursion", name
        if not _is_users_own(code):
            return "by name", name, self.modules.of(str(getattr(code, "__module__", "") or ""))
        if id(code) in self._code:
            return "code", self._code[id(code)][1]
        self._inside[id(code)] = None
        try:
            digest = self.of(self._function(code) if isinstance(code, types.FunctionType) else self._class(code))
        finally:
            del self._inside[id(code)]
            self._open.discard(id(code))
        if not self._open:  # else it is told without what is around it
            self._code[id(code)] = code, digest  # with the object, so that its id stays its own
        return "code", digest

    def _function(self, fn: types.FunctionType) -> Any:
        cells = []
        for cell in fn.__closure__ or ():
            try:
                cells.append(cell.cell_contents)
            except ValueError:
                cells.append("empty")
        names = sorted(_names_of(fn.__code__))
        known = [(name, fn.__globals__[name]) for name in names if name in fn.__globals__]
        reached = self.modules.named(names, fn.__globals__)
        return "function", _plain_code(fn.__code__), fn.__defaults__, fn.__kwdefaults__, cells, known, reached

    def _class(self, cls: type) -> Any:
        members = sorted((name, value) for name, value in vars(cls).items() if name not in _SKIPPED)
        return "class", cls.__qualname__, list(cls.__bases__), [(name, _member(value)) for name, value in members]


class _KeyPickler(CodePickler):
    """Writes values for a digest: code, steps and sets by what stands for them."""

    def __init__(self, buffer: io.BytesIO, digests: _Digests) -> None:
        super().__init__(buffer, protocol=5)
        self._digests = digests

    def persistent_id(self, value: Any) -> Any:
        """What stands for *value*."""
        if type(value) in _ATOMS:
            return None
        from .dag import Step

        if isinstance(value, Step):
            return "step", self._digests.of_step(value)
        if isinstance(value, types.FunctionType | type):
            return self._digests.of_code(value)
        if isinstance(value, types.ModuleType):
            return "module", value.__name__, self._digests.modules.of(value.__name__)
        if isinstance(value, set | frozenset):
            return "set", sorted(self._digests.of(each) for each in value)
        return None


def _member(value: Any) -> Any:
    """A member of a class, as far as it can be looked into."""
    if isinstance(value, staticmethod | classmethod):
        return type(value).__name__, value.__func__
    if isinstance(value, property):
        return "property", value.fget, value.fset
    if isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
        return "slot"
    return value


def _plain_code(code: types.CodeType) -> Any:
    """What a code object does, without where it was written."""
    constants = [_plain_code(each) if isinstance(each, types.CodeType) else each for each in code.co_consts]
    taken = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, code.co_exceptiontable, constants, names, taken


def _names_of(code: types.CodeType) -> set[str]:
    """The names that a code object, and those inside of it, may look up among globals."""
    found = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found |= _names_of(each)
    return found


def _is_users_own(code: Any) -> bool:
    """Whether code travels by value: of the script, a notebook, or a module that belongs to no distribution."""
    name = str(getattr(code, "__module__", "") or "")
    if name in ("__main__", "__mp_main__") or name not in sys.modules or _is_by_value(name):
        return True
    # What was made inside of a function cannot be found by its name.
    return "<locals>" in str(getattr(code, "__qualname__", ""))


def _is_by_value(name: str) -> bool:
    """Whether a module that is imported is among those that travel by value."""
    by_value = cloudpickle.list_registry_pickle_by_value()
    parts = name.split(".")
    return name in sys.modules and any(".".join(parts[: end + 1]) in by_value for end in range(len(parts)))
