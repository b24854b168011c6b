"""From functions and arguments to bytes, and back.

What of it travels by value and what by name: modules_by_value.py. Whom to blame when it cannot be pickled:
``actorgrid.pickle_blame``.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from actorgrid.code_pickler import CodePickler
from actorgrid.errors import ActorGridError, HostUnreachable, ObjectLost, UnpicklableFunction, UnpicklableResult
from actorgrid.import_environment import of_this_process, with_environment
from actorgrid.objects.refs import Ref
from actorgrid.objects.space import Held, ObjectSpace
from actorgrid.objects.stored import KEPT_BYTES, Packed, PickledBeside, large, pack
from actorgrid.pickle_blame import Blame, Parts, blame, globals_of, short
from actorgrid.transports.task_frames import fn_id_of

from .futures import JobFuture, LazyFuture, futures_as_inputs, is_future
from .modules_by_value import ModulesByValue

MAX_CACHED_FUNCTIONS = 4096
MAX_MODULES_BY_NAME = 16
"""Packages that are tried by name, one after the other, when something cannot be pickled by value."""
MAX_PAYLOAD_BYTES = 64 * 2**20 - 1024
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_ATOMS = frozenset({int, float, str, bytes, bool, type(None), complex})


OpenSpace = Callable[[], ObjectSpace | None]


def no_space() -> None:
    """Nothing: there is no object store."""


class FunctionCode(NamedTuple):
    """A pickled function, named by its content. ``kin`` is the same for all closures of one definition."""

    fn_id: bytes
    code: bytes
    name: str
    kin: str
    held: tuple[Held, ...] = ()
    """What it needs of the object store: references that it captures, or all of its code."""


class _Cached(NamedTuple):
    alive: weakref.ref[Any]
    globals_seen: tuple[tuple[str, Any], ...]
    cells_seen: tuple[tuple[types.CellType, Any], ...]
    code: FunctionCode


_cache: dict[int, _Cached] = {}
_cache_lock = threading.Lock()
_modules = ModulesByValue()
_UNSET = object()


def function_code(fn: Callable[..., Any], objects: OpenSpace = no_space) -> FunctionCode:
    """The pickled function, pickled once per function object; a large one is kept in the object store.

    It is pickled anew when a global or closure variable it names was bound to another object since; a change
    *inside* such an object (an append to a list) is not seen. Raises UnpicklableFunction.
    """
    cached = _cache.get(id(fn))
    if cached is not None and cached.alive() is fn and _unchanged(fn, cached) and _is_there(cached.code, objects):
        return cached.code
    if not callable(fn):
        raise UnpicklableFunction(f"{fn!r} cannot be called", found=type(fn).__name__)
    code, held = pack(lambda beside: dumps(fn, "the function", beside=beside), objects)
    name = str(getattr(fn, "__name__", type(fn).__name__))
    line = fn.__code__.co_firstlineno if isinstance(fn, types.FunctionType) else 0
    kin = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', name)}:{line}"
    made = FunctionCode(fn_id_of(code), code, name, kin, held)
    key = id(fn)
    try:
        # Bound here: at the end of the interpreter a module's names may be gone before its functions are.
        alive = weakref.ref(fn, lambda _, forget=_cache.pop: forget(key, None))  # type: ignore[misc]
    except TypeError:
        return made  # no way to know when its id is given to something else
    globals_seen, cells_seen = _surroundings(fn)
    with _cache_lock:
        if len(_cache) >= MAX_CACHED_FUNCTIONS:
            _cache.clear()
        _cache[key] = _Cached(alive, globals_seen, cells_seen, made)
    return made


def _is_there(code: FunctionCode, objects: OpenSpace) -> bool:
    """Whether what the code needs of the store is where this client's workers find it."""
    return not code.held or all(held.space is objects() and not held.space.closed for held in code.held)


def _unchanged(fn: Any, cached: _Cached) -> bool:
    if cached.globals_seen:
        scope = fn.__globals__
        for name, value in cached.globals_seen:
            if scope.get(name, _UNSET) is not value:
                return False
    return all(_cell(cell) is value for cell, value in cached.cells_seen)


def _surroundings(fn: Any) -> tuple[tuple[tuple[str, Any], ...], tuple[tuple[types.CellType, Any], ...]]:
    if not isinstance(fn, types.FunctionType):
        return (), ()
    return (
        tuple(globals_of(fn)),
        tuple((cell, _cell(cell)) for cell in fn.__closure__ or ()),
    )


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNSET


def arguments(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: dict[LazyFuture[Any], int],
    objects: OpenSpace = no_space,
) -> Packed:
    """Pickle ``(args, kwargs)``. Futures inside are named, and put into *inputs* with the index of each; references to
    objects stand for their values. What is large is kept in the object store, if *objects* says that there is one.

    Raises UnpicklableFunction naming the argument, ObjectStoreFull, HostUnreachable.
    """
    if not kwargs and _plain(args):
        data = pickle.dumps((args, kwargs), 5)
        if len(data) <= KEPT_BYTES:
            return Packed(data, ())

    def dump(beside: PickledBeside | None) -> bytes:
        if not kwargs and _plain_but_for_futures(args):
            shown = args if beside is None else tuple(map(large, args))
            data = pickle.dumps((shown, kwargs), 5, buffer_callback=beside)
            return data if beside is not None else _bounded(data)
        return dumps(_Arguments(args, kwargs), "the arguments", beside=beside)

    with futures_as_inputs(inputs):
        return pack(dump, objects, as_values=True)


class _Arguments(NamedTuple):
    """For the blame only: it is pickled as a plain tuple."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __reduce__(self) -> Any:
        return (tuple, ((self.args, self.kwargs),))

    def parts(self) -> Parts:
        """The arguments, each with what to call it."""
        return [
            *((f"argument {number}", item) for number, item in enumerate(self.args)),
            *((f"argument {name}", item) for name, item in self.kwargs.items()),
        ]


def _plain(values: Iterable[Any]) -> bool:
    """Whether plain pickle does what cloudpickle would: no functions or classes of the user's inside."""
    return all(type(value) in _ATOMS for value in values)


def _plain_but_for_futures(values: Iterable[Any]) -> bool:
    """The same where futures are among the values, and lists and tuples of futures and plain values."""
    for value in values:
        kind = type(value)
        if not (
            kind in _ATOMS
            or issubclass(kind, (LazyFuture, Ref))
            or (
                kind in (list, tuple)
                and all(type(item) in _ATOMS or issubclass(type(item), (LazyFuture, Ref)) for item in value)
            )
        ):
            return False
    return True


def job_payload(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], directory: bool = True, installed: bool = True
) -> tuple[bytes, list[str]]:
    """``(fn, args, kwargs)`` with references to other jobs' results, and the ids of those jobs.

    Behind it stands from where this process imports, for a worker on this machine, and with *directory* where it is;
    without *installed* not its distributions, as the worker has others.
    """
    jobs: dict[str, None] = {}
    payload = dumps(_JobCall(fn, args, kwargs), "the function and its arguments", jobs)
    return _bounded(with_environment(payload, of_this_process(directory, installed))), list(jobs)


class _JobCall(NamedTuple):
    """For the blame only: it is pickled as a plain tuple."""

    fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __reduce__(self) -> Any:
        return (tuple, ((self.fn, self.args, self.kwargs),))

    def parts(self) -> Parts:
        """The function and its arguments, each with what to call it."""
        return [("the function", self.fn), *_Arguments(self.args, self.kwargs).parts()]


class _JobPickler(CodePickler):
    def __init__(self, file: io.BytesIO, jobs: dict[str, None]) -> None:
        super().__init__(file, protocol=5)
        self._jobs = jobs

    def persistent_id(self, value: Any) -> tuple[str, str] | None:
        if isinstance(value, JobFuture):
            self._jobs[value.job_id] = None
            return ("job", value.job_id)
        return None


MakePickler = Callable[[io.BytesIO], CodePickler]
"""Makes a pickler of what is written to a buffer: one that knows what stands for something else."""


def dumps(
    value: Any,
    what: str,
    jobs: dict[str, None] | None = None,
    beside: PickledBeside | None = None,
    make: MakePickler | None = None,
) -> bytes:
    """Pickle *value*; with *jobs*, references to jobs are allowed and collected there. *beside* takes what pickle
    leaves out of it, and then there may be any amount of it. *make* makes the pickler.

    Raises UnpicklableFunction, which names the part that cannot be pickled, also when there is too much of it.
    """
    try:
        return _dump(value, jobs, beside, make)
    except (UnpicklableFunction, ActorGridError):
        raise
    except Exception as error:  # noqa: BLE001 - user objects raise what they like from __reduce__
        failure = error
    tried: list[str] = []
    while len(tried) < MAX_MODULES_BY_NAME:
        found = _blame(value, make)
        package = _modules.by_name_instead(found.chain)
        if not package:
            break
        tried.append(package)
        try:
            return _dump(value, jobs, beside, make)
        except UnpicklableFunction:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            failure = error
    _modules.by_value_again(tried)
    raise UnpicklableFunction(
        f"{what} cannot be sent to another process: {found.path or what} cannot be pickled",
        found=f"{short(found.part)}: {type(failure).__name__}: {str(failure)[:200]}",
        hint=_advice(found.part),
        path=found.path,
    ) from failure


def _dump(
    value: Any,
    jobs: dict[str, None] | None,
    beside: PickledBeside | None = None,
    make: MakePickler | None = None,
) -> bytes:
    _modules.mark()
    buffer = io.BytesIO()
    if beside is not None:
        beside.clear()  # what was found before something could not be pickled
    if make is not None:
        pickler = make(buffer)
    else:
        pickler = CodePickler(buffer, 5, buffer_callback=beside) if jobs is None else _JobPickler(buffer, jobs)
    pickler.dump(value)
    return buffer.getvalue() if beside is not None else _bounded(buffer.getvalue())


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_PAYLOAD_BYTES:
        raise UnpicklableFunction(
            f"{len(data)} bytes are too much for one task",
            asked=f"at most {MAX_PAYLOAD_BYTES} bytes",
            hint="write it to a file the workers see and send the path",
        )
    return data


# -- whom to blame


def _blame(value: Any, make: MakePickler | None = None) -> Blame:
    parts = value.parts() if isinstance(value, (_Arguments, _JobCall)) else None
    return blame(value, lambda part: _pickles(part, make), parts=parts, opaque=is_future)


def _pickles(value: Any, make: MakePickler | None) -> bool:
    try:
        _dump(value, {}, make=make)
    except Exception:  # noqa: BLE001 - whatever a user's object raises means no
        return False
    return True


def _advice(blamed: Any) -> str:
    if is_future(blamed):
        return "pass it as an argument of a session task, or its result(); a durable=True submit takes durable futures"
    return "make it inside the function, or pass what it is made from"


# -- and back


def loads_value(data: bytes) -> Any:
    """Unpickle a result's value. Raises UnpicklableResult when this process cannot rebuild it."""
    try:
        return pickle.loads(data)  # nosec B301 - from the user's own worker
    except (ObjectLost, HostUnreachable):
        raise
    except Exception as error:  # user classes raise what they like
        raise UnpicklableResult(
            "the result arrived, but cannot be rebuilt here",
            found=f"{type(error).__name__}: {error}",
            hint="import the module its class comes from, or return plain values",
        ) from error
