"""OTP's child specification and supervisor flags: what a supervisor must know of its children and of itself.

After the reference of OTP's ``supervisor`` behaviour. Everything is checked where it is made, so that a supervisor
never meets a wrong one; :func:`check_supervisor` adds what only shows when flags and specs come together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from actorgrid.errors import InvalidChildSpec

Restart = Literal["permanent", "transient", "temporary"]
Shutdown = float | Literal["brutal_kill", "infinity"]
ChildType = Literal["worker", "supervisor"]
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one"]
AutoShutdown = Literal["never", "any_significant", "all_significant"]

SHUTDOWN_S_MAX = 3600.0
HANDLER_S_MAX = 3600.0
MEMORY_MIB_MAX = 1 << 24
PERIOD_S_MAX = 86_400.0
INTENSITY_MAX = 10_000
CHILDREN_MAX = 1000

_ID = re.compile(r"[a-z][a-z0-9_]{0,62}")
_KIND = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_WORKER_SHUTDOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """OTP's child specification: what a supervisor starts, and how it restarts and stops it.

    ``id`` is the name its supervisor knows it by and, with ``register``, the name other servers call it by.
    ``kind`` says where its Server class is: ``package.module:Class``; its ``start`` finds ``arguments`` in
    ``self.arguments``, so they must be picklable.

    ``restart``: ``permanent`` is always started again, ``transient`` after an abnormal end only (any reason but
    normal and shutdown), ``temporary`` never, and its spec is forgotten when it ends. ``shutdown``: seconds given to
    an orderly stop before SIGKILL; ``brutal_kill``: SIGKILL at once; ``infinity``: as long as it takes. Not given,
    it is 5 s for a worker, infinity for a supervisor. ``start_timeout_s``: a start that takes longer has failed.

    ``type``: a ``supervisor``'s ``kind`` is a Supervisor class. ``significant``: its end by itself counts for the
    supervisor's ``auto_shutdown``. ``max_handler_s`` replaces the class's own; ``memory_mib`` limits its memory.

    Raises InvalidChildSpec, which says which field is wrong and how.
    """

    id: str
    kind: str
    restart: Restart = "permanent"
    shutdown: Shutdown | None = None
    start_timeout_s: float = 60.0
    type: ChildType = "worker"
    significant: bool = False
    arguments: tuple[Any, ...] = ()
    register: bool = True
    max_handler_s: float | None = None
    memory_mib: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not _ID.fullmatch(self.id):
            raise self._wrong("id", "a name of lower-case letters, digits and _, 63 at most")
        self.check_kind()
        if not _is_one_of(self.restart, Restart):
            raise self._wrong("restart", _words(Restart))
        if not _is_one_of(self.type, ChildType):
            raise self._wrong("type", _words(ChildType))
        if self.shutdown is None:
            object.__setattr__(self, "shutdown", "infinity" if self.type == "supervisor" else _WORKER_SHUTDOWN_S)
        if self.shutdown not in ("brutal_kill", "infinity") and not _is_number(self.shutdown, 0, SHUTDOWN_S_MAX):
            raise self._wrong("shutdown", f"0 to {SHUTDOWN_S_MAX:g} s, 'brutal_kill' or 'infinity'")
        if not _is_number(self.start_timeout_s, 0, SHUTDOWN_S_MAX) or not self.start_timeout_s:
            raise self._wrong("start_timeout_s", f"more than 0, at most {SHUTDOWN_S_MAX:g} s")
        if not isinstance(self.significant, bool):
            raise self._wrong("significant", "True or False")
        if self.significant and self.restart == "permanent":
            raise self._wrong(
                "significant", "restart='transient' or 'temporary': a permanent child never ends for good"
            )
        if not isinstance(self.arguments, tuple):
            raise self._wrong("arguments", "a tuple: (value,) for one value")
        if not isinstance(self.register, bool):
            raise self._wrong("register", "True or False")
        if self.max_handler_s is not None and not (
            _is_number(self.max_handler_s, 0, HANDLER_S_MAX) and self.max_handler_s
        ):
            raise self._wrong("max_handler_s", f"more than 0, at most {HANDLER_S_MAX:g} s, or None for the class's own")
        if self.memory_mib is not None and not (_is_whole(self.memory_mib, 1, MEMORY_MIB_MAX)):
            raise self._wrong("memory_mib", f"a whole number, 1 to {MEMORY_MIB_MAX}, or None for no limit")

    def check_kind(self) -> None:
        """Raises InvalidChildSpec when ``kind`` names no class."""
        if not isinstance(self.kind, str) or not _KIND.fullmatch(self.kind):
            raise self._wrong("kind", "package.module:Class")

    def _wrong(self, field: str, wanted: str) -> InvalidChildSpec:
        return _wrong(f"child spec {self.id!r}", field, getattr(self, field), wanted)

    @property
    def module(self) -> str:
        """The module that holds the child's class."""
        return self.kind.partition(":")[0]

    @property
    def class_name(self) -> str:
        """The name of its class."""
        return self.kind.partition(":")[2]

    def wants_restart(self, normal: bool) -> bool:
        """Whether the child is started again after its end, which was orderly (*normal*) or not."""
        return self.restart == "permanent" or (self.restart == "transient" and not normal)

    def shutdown_s(self) -> float | None:
        """Seconds from the order to stop until SIGKILL; ``None`` when there is no limit."""
        if self.shutdown is None or self.shutdown == "infinity":
            return None
        return 0.0 if self.shutdown == "brutal_kill" else float(self.shutdown)


@dataclass(frozen=True, slots=True)
class SupervisorFlags:
    """How a supervisor answers the end of a child.

    ``strategy``: ``one_for_one`` restarts the child alone; ``one_for_all`` all children; ``rest_for_one`` the child
    and those started after it; ``simple_one_for_one`` is one_for_one over any number of children that are all
    started from one spec, on request. More than ``intensity`` restarts within ``period_s`` make the supervisor stop
    everything and end. ``auto_shutdown``: end in order when ``any_significant`` child, or when the last of
    ``all_significant`` children, has ended by itself.

    Raises InvalidChildSpec, which says which field is wrong and how.
    """

    strategy: Strategy = "one_for_one"
    intensity: int = 10
    period_s: float = 30.0
    auto_shutdown: AutoShutdown = "never"

    def __post_init__(self) -> None:
        if not _is_one_of(self.strategy, Strategy):
            raise self._wrong("strategy", _words(Strategy))
        if not _is_whole(self.intensity, 0, INTENSITY_MAX):
            raise self._wrong("intensity", f"a whole number, 0 to {INTENSITY_MAX}")
        if not _is_number(self.period_s, 0, PERIOD_S_MAX) or not self.period_s:
            raise self._wrong("period_s", f"more than 0, at most {PERIOD_S_MAX:g} s")
        if not _is_one_of(self.auto_shutdown, AutoShutdown):
            raise self._wrong("auto_shutdown", _words(AutoShutdown))

    def _wrong(self, field: str, wanted: str) -> InvalidChildSpec:
        return _wrong("supervisor flags", field, getattr(self, field), wanted)

    @property
    def simple(self) -> bool:
        """Whether all children come from one spec, on request."""
        return self.strategy == "simple_one_for_one"


def kind_of(server: type) -> str:
    """The name of the class *server* for a child spec: ``package.module:Class``. A script's own classes are found too.

    Raises InvalidChildSpec for a class inside a function or another class: a new process could not find it by name.
    """
    kind = f"{server.__module__}:{server.__qualname__}"
    if not _KIND.fullmatch(kind):
        raise InvalidChildSpec(
            f"{server.__qualname__} cannot be found by name", asked=kind, hint="define it at the top level of a module"
        )
    return kind


def check_children(specs: Iterable[ChildSpec], children_max: int = CHILDREN_MAX) -> tuple[ChildSpec, ...]:
    """The specs in order. Raises InvalidChildSpec: not a spec, two of one id, or more than *children_max*."""
    ordered = tuple(specs)
    seen: set[str] = set()
    for spec in ordered:
        if not isinstance(spec, ChildSpec):
            raise InvalidChildSpec(
                "a child is described by something else than a ChildSpec",
                found=repr(spec)[:200],
                hint="give ChildSpec(id, 'package.module:Class', ...)",
            )
        if spec.id in seen:
            raise InvalidChildSpec(f"two children are called {spec.id!r}", hint="give each its own id")
        seen.add(spec.id)
    if len(ordered) > children_max:
        raise InvalidChildSpec(
            f"{len(ordered)} children are more than one supervisor takes",
            found=f"the limit is {children_max}",
            hint="put supervisors between them",
        )
    return ordered


def check_supervisor(
    flags: SupervisorFlags, specs: Iterable[ChildSpec], children_max: int = CHILDREN_MAX
) -> tuple[ChildSpec, ...]:
    """The specs in order, fit for these flags. Raises InvalidChildSpec.

    Beyond :func:`check_children`: ``simple_one_for_one`` takes exactly one spec, and ``significant`` means something
    only where ``auto_shutdown`` is not ``never``.
    """
    if not isinstance(flags, SupervisorFlags):
        raise InvalidChildSpec(
            "init gave something else than SupervisorFlags",
            found=repr(flags)[:200],
            hint="return (SupervisorFlags(...), [ChildSpec(...), ...])",
        )
    ordered = check_children(specs, children_max)
    if flags.simple and len(ordered) != 1:
        raise InvalidChildSpec(
            "simple_one_for_one starts all its children from one spec",
            found=f"{len(ordered)} specs",
            hint="give exactly one, or choose one_for_one",
        )
    for spec in ordered:
        check_significance(flags, spec)
    return ordered


def check_significance(flags: SupervisorFlags, spec: ChildSpec) -> None:
    """Raises InvalidChildSpec when *spec* is significant for a supervisor that never shuts itself down."""
    if spec.significant and flags.auto_shutdown == "never":
        hint = "significant=False, or auto_shutdown='any_significant' | 'all_significant' in the supervisor's flags"
        raise _wrong(f"child spec {spec.id!r}", "significant", True, hint)


def _wrong(what: str, field: str, value: object, wanted: str) -> InvalidChildSpec:
    return InvalidChildSpec(f"{what}: {field} is wrong", asked=f"{field} = {value!r}", hint=f"give {wanted}")


def _is_one_of(value: object, words: Any) -> bool:
    return isinstance(value, str) and value in get_args(words)


def _words(words: Any) -> str:
    return " | ".join(get_args(words))


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
