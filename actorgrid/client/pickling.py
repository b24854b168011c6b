"""From functions and arguments to bytes, and which part to blame when that fails.

Modules that are not installed (a script's neighbours, tests, notebooks) travel by value, so that a worker needs
no copy of them on its path; installed ones travel by name.
"""

from __future__ import annotations

import io
import pickle
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cloudpickle

from actorgrid.errors import UnpicklableFunction, UnpicklableResult
from actorgrid.transports.task_frames import fn_id_of

from .futures import JobFuture, is_future

MAX_CACHED_FUNCTIONS = 4096
MAX_BLAMED = 500
MAX_PAYLOAD_BYTES = 64 * 2**20 - 1024
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_ATOMS = frozenset({int, float, str, bytes, bool, type(None), complex})


class FunctionCode(NamedTuple):
    """A pickled function, named by its content. ``kin`` is the same for all closures of one definition."""

    fn_id: bytes
    code: bytes
    name: str
    kin: str


class _Cached(NamedTuple):
    alive: weakref.ref[Any]
    globals_seen: tuple[tuple[str, Any], ...]
    cells_seen: tuple[tuple[types.CellType, Any], ...]
    code: FunctionCode


_cache: dict[int, _Cached] = {}
_cache_lock = threading.Lock()
_UNSET = object()


def function_code(fn: Callable[..., Any]) -> FunctionCode:
    """The pickled function, pickled once per function object.

    It is pickled anew when a global or closure variable it names was bound to another object since; a change
    *inside* such an object (an append to a list) is not seen. Raises UnpicklableFunction.
    """
    cached = _cache.get(id(fn))
    if cached is not None and cached.alive() is fn and _unchanged(fn, cached):
        return cached.code
    if not callable(fn):
        raise UnpicklableFunction(f"{fn!r} cannot be called", found=type(fn).__name__)
    code = dumps(fn, "the function")
    name = str(getattr(fn, "__name__", type(fn).__name__))
    line = fn.__code__.co_firstlineno if isinstance(fn, types.FunctionType) else 0
    kin = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', name)}:{line}"
    made = FunctionCode(fn_id_of(code), code, name, kin)
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
    scope = fn.__globals__
    names: set[str] = set()
    pending = [fn.__code__]
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        pending += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return (
        tuple((name, scope[name]) for name in sorted(names) if name in scope),
        tuple((cell, _cell(cell)) for cell in fn.__closure__ or ()),
    )


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNSET


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle ``(args, kwargs)``. Raises UnpicklableFunction naming the argument."""
    if not kwargs and _plain(args):
        return _bounded(pickle.dumps((args, kwargs), 5))
    return dumps(_Arguments(args, kwargs), "the arguments")


class _Arguments(NamedTuple):
    """For the blame only: it is pickled as a plain tuple."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __reduce__(self) -> Any:
        return (tuple, ((self.args, self.kwargs),))


def _plain(values: tuple[Any, ...]) -> bool:
    """Whether plain pickle does what cloudpickle would: no functions or classes of the user's inside."""
    return all(type(value) in _ATOMS for value in values)


def job_payload(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, list[str]]:
    """``(fn, args, kwargs)`` with references to other jobs' results, and the ids of those jobs."""
    jobs: dict[str, None] = {}
    return dumps((fn, args, kwargs), "the function and its arguments", jobs), list(jobs)


class _JobPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, jobs: dict[str, None]) -> None:
        super().__init__(file, protocol=5)
        self._jobs = jobs

    def persistent_id(self, value: Any) -> tuple[str, str] | None:
        if isinstance(value, JobFuture):
            self._jobs[value.job_id] = None
            return ("job", value.job_id)
        return None


def dumps(value: Any, what: str, jobs: dict[str, None] | None = None) -> bytes:
    """Pickle *value*; with *jobs*, references to jobs are allowed and collected there.

    Raises UnpicklableFunction, which names the part that cannot be pickled, also when there is too much of it.
    """
    try:
        return _dump(value, jobs)
    except UnpicklableFunction:
        raise
    except Exception as error:  # user objects raise what they like from __reduce__
        path, blamed = _blame(value)
        raise UnpicklableFunction(
            f"{what} cannot be sent to another process: {path or what} cannot be pickled",
            found=f"{_short(blamed)}: {type(error).__name__}: {str(error)[:200]}",
            hint=_advice(blamed),
            path=path,
        ) from error


def _dump(value: Any, jobs: dict[str, None] | None) -> bytes:
    _by_value()
    buffer = io.BytesIO()
    pickler = cloudpickle.Pickler(buffer, protocol=5) if jobs is None else _JobPickler(buffer, jobs)
    pickler.dump(value)
    return _bounded(buffer.getvalue())


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_PAYLOAD_BYTES:
        raise UnpicklableFunction(
            f"{len(data)} bytes are too much for one task",
            asked=f"at most {MAX_PAYLOAD_BYTES} bytes",
            hint="write it to a file the workers see and send the path",
        )
    return data


# -- modules that travel by value

_installed = tuple(
    {
        path + "/"
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name)) is not None
    }
)
_seen_modules = 0


def _by_value() -> None:
    """Mark modules that were imported from outside the installation; looked at again when there are more of them."""
    global _seen_modules
    if len(sys.modules) == _seen_modules:
        return
    _seen_modules = len(sys.modules)
    marked = cloudpickle.list_registry_pickle_by_value()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            isinstance(file, str)
            and name not in marked
            and name != "__main__"
            and name.partition(".")[0] != "actorgrid"
            and isinstance(module, types.ModuleType)
            and not file.startswith(_installed)
            and "-packages/" not in file
        ):
            cloudpickle.register_pickle_by_value(module)


# -- whom to blame


def _blame(root: Any) -> tuple[str, Any]:
    """The deepest part of *root* that cannot be pickled, as a path in words, and that part."""
    path, blamed = "", root
    seen = {id(root)}
    while len(seen) < MAX_BLAMED:
        for label, part in _parts(blamed):
            if id(part) in seen or len(seen) >= MAX_BLAMED:
                continue
            seen.add(id(part))
            if not _pickles(part):
                path, blamed = f"{path} → {label}" if path else label, part
                break
        else:
            break
    return path, blamed


def _pickles(value: Any) -> bool:
    try:
        _dump(value, {})
    except Exception:  # noqa: BLE001 - whatever a user's object raises means no
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if is_future(value):
        return
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            yield f"variable {name!r} of {value.__name__}", _cell(cell)
        for name, used in _surroundings(value)[0]:
            yield f"global {name!r} of {value.__name__}", used
        for default in value.__defaults__ or ():
            yield f"a default of {value.__name__}", default
    elif isinstance(value, types.MethodType):
        yield f"the object of method {value.__name__}", value.__self__
    elif isinstance(value, _Arguments):
        yield from ((f"argument {number}", item) for number, item in enumerate(value.args))
        yield from ((f"argument {name}", item) for name, item in value.kwargs.items())
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"key {_short(key)}", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for number, item in enumerate(value):
            yield f"item {number}", item
    elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, (type, types.ModuleType)):
        for name, item in vars(value).items():
            yield f"attribute {name!r} of {type(value).__name__}", item


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's repr
        text = object.__repr__(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _advice(blamed: Any) -> str:
    if is_future(blamed):
        return "pass its result(); the future of a durable=True submit can be passed to another durable=True submit"
    return "make it inside the function, or pass what it is made from"


# -- and back


def loads_value(data: bytes) -> Any:
    """Unpickle a result's value. Raises UnpicklableResult when this process cannot rebuild it."""
    try:
        return pickle.loads(data)  # nosec B301 - from the user's own worker
    except Exception as error:  # user classes raise what they like
        raise UnpicklableResult(
            "the result arrived, but cannot be rebuilt here",
            found=f"{type(error).__name__}: {error}",
            hint="import the module its class comes from, or return plain values",
        ) from error
