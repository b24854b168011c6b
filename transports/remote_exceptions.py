"""An exception that a task raised, from the worker to whoever asks for its value: caught there by its own type.

What is raised is of a class made from both the exception's own and TaskFailed, so that ``except KeyError`` and
``except TaskFailed`` both take it; it has the arguments, attributes, notes and causes of the original, and at the end
of its causes the worker's traceback (docs/decisions/0039-a-tasks-exception-is-of-both-types.md).

Exceptions are carried as their state and rebuilt without a call of their ``__init__``, whose arguments nobody knows.
"""

from __future__ import annotations

import contextlib
import pickle  # nosec B403 - between a user's client and that user's worker, after authentication
import types
from collections.abc import Callable, Iterator
from typing import Any

from actorgrid.errors import ActorGridError, TaskFailed
from actorgrid.pickle_blame import blame

MAX_EXCEPTION_BYTES = 1 << 20
MAX_CAUSES = 16
"""So many causes and contexts of an exception are carried, one behind the other; the traceback has them all."""
MAX_CLASSES = 1024
MAX_LEFT_BEHIND = 20
LEFT_BEHIND = "left_behind"
"""In the details of a TaskFailed: what of the exception could not be carried, by the path to it, and why."""
_FAILURE = "_actorgrid_failure"
_OWN_STATE = frozenset({"args", "__traceback__", "__context__", "__cause__", "__suppress_context__", "__dict__"})
_HEAVY = frozenset({"obj"})
"""Of AttributeError and NameError: the whole object that lacked something."""
_NOT_RAISED_BY_TYPE = (StopIteration, StopAsyncIteration)
"""They would mean something else to a generator or a coroutine that they pass."""


class RemoteTraceback(Exception):
    """The traceback of a task on its worker: the last of the causes of what the task raised. ``tb`` is its text."""

    def __init__(self, tb: str) -> None:
        super().__init__(tb)
        self.tb = tb

    def __str__(self) -> str:
        return f'\n"""\n{self.tb.rstrip()}\n"""'


# -- on the worker


class _Carried:
    """Pickles as the state of an exception, and comes back as the exception."""

    def __init__(self, error: BaseException, keep: Callable[[str, Any], bool], depth: int = 0) -> None:
        self._error = error
        self._keep = keep
        self._depth = depth

    def __reduce__(self) -> Any:
        error, keep = self._error, self._keep
        args: list[Any] = []
        for number, value in enumerate(error.args):
            if number == 1 and isinstance(error, BaseExceptionGroup):
                args.append([_Carried(inner, keep, self._depth + 1) for inner in error.exceptions])
            else:
                args.append(value if keep(f"argument {number}", value) else _shown(value))
        own = {name: value for name, value in vars(error).items() if name != _FAILURE and keep(name, value)}
        fields = {name: value for name, value in _fields(error) if keep(name, value)}
        # One of the two, so that what is carried stays a chain.
        cause, context = error.__cause__, error.__context__ if error.__cause__ is None else None
        links = self._carried(cause), self._carried(context)
        return _revive, (original_class(type(error)), tuple(args), own, fields, *links, error.__suppress_context__)

    def _carried(self, link: BaseException | None) -> _Carried | None:
        if link is None or isinstance(link, RemoteTraceback) or self._depth >= MAX_CAUSES:
            return None
        return _Carried(link, self._keep, self._depth + 1)


def pickle_exception(error: BaseException) -> tuple[bytes | None, list[str]]:
    """The exception with its causes, in bytes that come back as one; and what could not be carried, by name and why.

    ``None`` when it cannot be carried at all: its class cannot be pickled, or it is above 1 MiB even without what
    makes it large.
    """
    left_behind: dict[str, None] = {}
    data = _pickled(_Carried(error, lambda _name, _value: True), MAX_EXCEPTION_BYTES)
    if isinstance(data, bytes):
        return data, []

    def keep(name: str, value: Any) -> bool:
        found = _pickled(value, MAX_EXCEPTION_BYTES // 16)
        if not isinstance(found, bytes) and len(left_behind) < MAX_LEFT_BEHIND:
            within = blame(value, _comes_back).path
            left_behind[f"{name} → {within}: {found}" if within else f"{name}: {found}"] = None
        return isinstance(found, bytes)

    data = _pickled(_Carried(error, keep), MAX_EXCEPTION_BYTES)
    if isinstance(data, bytes):
        return data, list(left_behind)
    return None, [f"the exception: {data}"]


def _comes_back(value: Any) -> bool:
    return isinstance(_pickled(value, MAX_EXCEPTION_BYTES // 16), bytes)


def _pickled(value: Any, max_bytes: int) -> bytes | str:
    """*value* in bytes that were read back once, or why not."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
        pickle.loads(data)  # nosec B301 - our own bytes: many objects pickle but do not come back
    except Exception as error:  # noqa: BLE001 - user classes raise anything
        return f"{type(error).__name__}: {error}"[:200]
    return data if len(data) <= max_bytes else f"{len(data)} bytes are too many"


def _shown(value: Any) -> str:
    try:
        return repr(value)[:1000]
    except Exception:  # noqa: BLE001 - a user's repr
        return object.__repr__(value)


def _fields(error: BaseException) -> Iterator[tuple[str, Any]]:
    """What an exception has beside its arguments and its dictionary: slots, and the fields of builtin classes."""
    for kind in type(error).__mro__:
        if kind is BaseExceptionGroup:
            continue  # they are its arguments
        for name, field in vars(kind).items():
            if isinstance(field, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                if name in _OWN_STATE or name in _HEAVY or (name.startswith("__") and name.endswith("__")):
                    continue
                try:
                    value = getattr(error, name)
                except AttributeError:
                    continue  # never set
                if value is not None:
                    yield name, value


# -- where it is caught


def _revive(
    kind: type[BaseException],
    args: tuple[Any, ...],
    own: dict[str, Any],
    fields: dict[str, Any],
    cause: BaseException | None,
    context: BaseException | None,
    suppress_context: bool,
) -> BaseException:
    """An exception of that state. ``__new__`` is that of the builtin class under it; no ``__init__`` is called."""
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins" and issubclass(base, BaseException))
    error: BaseException = builtin.__new__(kind, *args)
    _set(error, "args", args)
    error.__dict__.update(own)
    for name, value in fields.items():
        with contextlib.suppress(AttributeError, TypeError):  # one that __new__ alone sets
            _set(error, name, value)
    _set(error, "__cause__", cause)
    _set(error, "__context__", context)
    _set(error, "__suppress_context__", suppress_context)
    return error


def _set(error: BaseException, name: str, value: Any) -> None:
    """Set a slot or a field past what the class may have to say about it: some say that they are frozen."""
    for kind in type(error).__mro__:
        field = vars(kind).get(name)
        if isinstance(field, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            field.__set__(error, value)
            return
    raise AttributeError(name)


def raised_by_task(error: ActorGridError, exception: bytes | None) -> ActorGridError:
    """What to raise for a task's *error*, and the *exception* that it raised, in bytes, if it was carried.

    Of a TaskFailed: an exception of both its class and TaskFailed. Where that cannot be (the class is not importable
    here, refuses subclasses, or is no Exception, as SystemExit, which would end this process), the TaskFailed itself,
    which says why, with the exception as its cause if there is one.
    """
    if exception is None:
        return error
    try:
        original = pickle.loads(exception)  # nosec B301 - from the user's own worker
    except Exception as why:  # noqa: BLE001 - user classes raise anything
        return _not_rebuilt(error, f"its exception cannot be rebuilt here: {type(why).__name__}: {why}")
    if not isinstance(original, BaseException):
        return error
    made = _of_both(error, original) if isinstance(error, TaskFailed) else error
    if made is not None and made is not error:
        return made
    error.__cause__ = original
    return error


def _of_both(failure: TaskFailed, original: BaseException) -> TaskFailed | None:
    if not isinstance(original, Exception) or isinstance(original, (*_NOT_RAISED_BY_TYPE, TaskFailed)):
        return None
    kind = type(original)
    try:
        both = _class_of_both(kind)
        made = _revive(
            both,
            original.args,
            vars(original),
            dict(_fields(original)),
            original.__cause__,
            original.__context__,
            original.__suppress_context__,
        )
    except Exception as why:  # noqa: BLE001 - hooks of user classes (__init_subclass__, __setattr__) raise anything
        _not_rebuilt(failure, f"{kind.__qualname__} cannot be raised together with TaskFailed: {why}")
        return None
    for name, value in vars(failure).items():
        if name not in made.__dict__ and not _defines(kind, name):
            made.__dict__[name] = value
    made.__dict__[_FAILURE] = failure
    if failure.remote_traceback:
        last: BaseException = made
        for _ in range(MAX_CAUSES):
            if last.__cause__ is None:
                _set(last, "__cause__", RemoteTraceback(_told(failure)))
                break
            last = last.__cause__
    assert isinstance(made, TaskFailed), "it was made of that class"
    return made


def _told(failure: TaskFailed) -> str:
    left_behind = failure.details.get(LEFT_BEHIND)
    if not isinstance(left_behind, list) or not left_behind:
        return failure.remote_traceback
    return f"{failure.remote_traceback}\nleft behind on the worker: " + "; ".join(map(str, left_behind))


def _not_rebuilt(error: ActorGridError, why: str) -> ActorGridError:
    error.found = f"{error.found}; {why}" if error.found else why[:500]
    return error


_classes: dict[type[BaseException], type[BaseException]] = {}


def original_class(kind: type[BaseException]) -> type[BaseException]:
    """The class that a task raised, of one that was made here; any other is its own."""
    found: type[BaseException] = vars(kind).get("_actorgrid_original", kind)
    return found


def _class_of_both(kind: type[BaseException]) -> type[BaseException]:
    found = _classes.get(kind)
    if found is None:
        if len(_classes) >= MAX_CLASSES:
            _classes.clear()
        found = _classes[kind] = _make_class(kind)
    return found


def _make_class(kind: type[BaseException]) -> type[BaseException]:
    """A class of both, in which everything of *kind* goes first: it behaves as *kind* does, and is called so."""
    namespace: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__init__": kind.__init__,
        "__str__": kind.__str__,
        "__repr__": kind.__repr__,
        "__reduce__": _reduce,
        "__reduce_ex__": lambda self, _protocol: _reduce(self),
        "_actorgrid_original": kind,
        "to_dict": lambda self: getattr(self, _FAILURE, TaskFailed(str(self))).to_dict(),
        "remote_traceback": property(lambda self: getattr(self, _FAILURE, TaskFailed()).remote_traceback),
    }
    for name in ("to_dict", "remote_traceback"):
        if _defines(kind, name) and not issubclass(kind, ActorGridError):
            del namespace[name]
    if not _defines(kind, "code"):
        namespace["code"] = "TaskFailed"  # no property: many exceptions set an attribute of that name
    metaclass: Callable[..., type[BaseException]] = type(kind)
    return metaclass(kind.__name__, (kind, TaskFailed), namespace)


def _defines(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__)


def _reduce(error: BaseException) -> Any:
    failure = getattr(error, _FAILURE, None) or TaskFailed(str(error))
    return _revive_of_both, (failure, _Carried(error, lambda _name, _value: True))


def _revive_of_both(failure: TaskFailed, carried: BaseException | _Carried) -> BaseException:
    original = carried if isinstance(carried, BaseException) else _of_state(carried)  # of copy.copy: nothing is pickled
    made = _of_both(failure, original)
    if made is None:
        failure.__cause__ = original
        return failure
    return made


def _of_state(carried: _Carried) -> BaseException:
    revive, state = carried.__reduce__()
    original: BaseException = revive(*state)
    return original
