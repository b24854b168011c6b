"""New code for a server that lives: it becomes one of the class that its module's file has now, and keeps its state.

OTP's ``sys:change_code`` and the ``code_change`` of gen_server and gen_statem. For a mended handler that needs no other
process; what changes a record that others send or are sent needs a restart, and is refused.

The file is run as a module beside the old one. Records that stand in both and are alike stay those of the old, as other
servers and modules have them: messages of either are known to both. Then, between two messages, the server's class is
changed, and ``code_change(old_version, state)`` of the new one is called. It has failed when that raises, takes longer
than ``limit_s``, or leaves an attribute out that the new class declares: the server then is as it was, with the
attributes of before. One that hangs in native code is its supervisor's: the watchdog ends it (``watchdog.py``).

What has begun goes on as it began: a handler that awaits, a coroutine in the background, a timer's function that was
named itself. What ``every`` calls is looked up anew each time. Other modules are not changed.
"""

from __future__ import annotations

import ast
import inspect
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from actorgrid.errors import BadRequest, NotSupported, WrongState

if TYPE_CHECKING:
    from .server import Server

LIMIT_S_MAX = 60.0
_KEPT = "__kept_records__"


@dataclass(frozen=True, slots=True)
class ChangeCode:
    """``sys:change_code``: be of the class that the file of your module has now. Answer: CodeChanged.

    Raises BadRequest for a file that cannot be run, WrongState when the change fails or needs a restart, NotSupported.
    """

    limit_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.limit_s <= LIMIT_S_MAX:
            raise BadRequest(f"a change takes more than 0 s and at most {LIMIT_S_MAX:g} s", asked=str(self.limit_s))


@dataclass(frozen=True, slots=True)
class CodeChanged:
    """A server has the code of its file. Versions are the classes' ``version``."""

    module: str
    old_version: str
    new_version: str


class CodeChangeLate(BaseException):
    """Raised in a ``code_change`` that takes longer than it may."""


def change_code(server: Server, request: ChangeCode) -> CodeChanged:
    """Give *server*, which handles no message now, the code of its file. Raises as ``ChangeCode``."""
    old: type[Server] = type(server)
    server.check_can_change()
    module = load_anew(old)
    new: Any = getattr(module, old.__name__, None)
    if not isinstance(new, type) or not hasattr(new, "code_changed"):
        raise BadRequest(f"{module.__name__} has no server {old.__name__} any more", hint="restart the host")
    before, after = str(old.version), str(getattr(new, "version", ""))
    state = dict(vars(server))
    try:
        with _limit(min(request.limit_s, server.max_handler_s / 2)):  # before the watchdog judges
            server.__class__ = new
            result = server.code_change(old.version, dict(state))
            missing = [name for name in _declared(new) if not hasattr(server, name) and _was_expected(name, old, state)]
            if missing:
                raise WrongState(f"{new.__name__} declares {', '.join(missing)}, which is not there after the change")
            server.code_changed(result)
    except BaseException as error:
        server.__class__ = old
        vars(server).clear()
        vars(server).update(state)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise WrongState(
            f"{server.title} keeps its code: the change failed: {type(error).__name__}: {error}",
            asked=f"version {after!r} in place of {before!r}",
            hint="mend code_change, or restart the host",
        ) from error
    sys.modules[module.__name__] = module
    return CodeChanged(module.__name__, before, after)


def load_anew(kind: type) -> ModuleType:
    """The module of a class as its file is now, with the records of the module that is loaded.

    Raises NotSupported without a file, BadRequest for what running it raises, WrongState when a record has changed.
    """
    before = sys.modules.get(kind.__module__)
    file = getattr(before, "__file__", None)
    if before is None or file is None or not file.endswith(".py"):
        raise NotSupported(f"{kind.__name__} is of no file that could have changed", asked=kind.__module__)
    try:
        with open(file, "rb") as opened:
            tree = ast.parse(opened.read(), file)
        trial = _run(before, tree, file)
        kept, changed = _compare(before, trial)
        if changed:
            raise WrongState(
                f"{', '.join(sorted(changed))} of {kind.__module__} changed, and others have the record of before",
                hint="actorgrid restart: this needs the whole host anew",
            )
        # Without the definitions of records: what is decorated by them, or annotated, means those that others have.
        tree.body = [
            _taken(node) if isinstance(node, ast.ClassDef) and node.name in kept else node for node in tree.body
        ]
        return _run(before, ast.fix_missing_locations(tree), file, kept)
    except (WrongState, KeyboardInterrupt):
        raise
    except Exception as error:
        raise BadRequest(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error


def _run(before: ModuleType, tree: ast.Module, file: str, kept: dict[str, type] | None = None) -> ModuleType:
    module = ModuleType(before.__name__)
    for name in ("__file__", "__package__", "__loader__", "__spec__", "__cached__"):
        setattr(module, name, getattr(before, name, None))
    setattr(module, _KEPT, kept or {})
    exec(compile(tree, file, "exec"), vars(module))  # nosec B102 - the installed code of this very program
    return module


def _taken(node: ast.ClassDef) -> ast.stmt:
    source = ast.parse(f"{node.name} = {_KEPT}[{node.name!r}]").body[0]
    return ast.copy_location(source, node)


def _compare(before: ModuleType, after: ModuleType) -> tuple[dict[str, type], set[str]]:
    """The records that stand in both and are alike, and the names of those that are not."""
    kept: dict[str, type] = {}
    changed: set[str] = set()
    for name, found in vars(after).items():
        known = vars(before).get(name)
        if not isinstance(found, type) or found.__module__ != after.__name__ or not isinstance(known, type):
            continue
        shape = _shape(found)
        if shape is None and _shape(known) is None:
            continue
        if shape == _shape(known):
            kept[name] = known
        else:
            changed.add(name)
    return kept, changed


def _shape(kind: type) -> Any:
    """What others must agree about of a record; ``None`` for a class that is none."""
    bases = [base.__qualname__ for base in kind.__bases__]
    if is_dataclass(kind):
        return bases, [(field.name, _text(field.type), field.init, field.kw_only) for field in fields(kind)]
    if issubclass(kind, Enum):
        return bases, [(member.name, repr(member.value)) for member in kind]
    if issubclass(kind, BaseException):
        return (bases,)
    if hasattr(kind, "__total__") or hasattr(kind, "_fields"):
        return bases, [(name, _text(annotation)) for name, annotation in kind.__annotations__.items()]
    return None


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else repr(annotation)


def attributes_declared_by(classes: Iterable[type]) -> list[str]:
    """The attributes that *classes* declare in their bodies: annotations that are no ClassVar."""
    annotated = (item for each in classes for item in inspect.get_annotations(each).items())
    return list(dict.fromkeys(name for name, annotation in annotated if "ClassVar" not in str(annotation)))


def _declared(kind: type) -> list[str]:
    """The attributes that a class declares, and its bases in the same module."""
    return attributes_declared_by(base for base in reversed(kind.__mro__) if base.__module__ == kind.__module__)


def _was_expected(name: str, old: type, state: dict[str, Any]) -> bool:
    """Whether it may be asked of a changed server: it is new, or was there before."""
    return name in state or name not in _declared(old)


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise CodeChangeLate in what takes longer; without a limit in other threads than the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_number: int, _frame: FrameType | None) -> None:
        raise CodeChangeLate(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
