"""A new version of a module in a living shard: its classes take the places of those of the same names, in order.

A release has a number, and only a greater one follows it. Its source is run as a module of its own, ``NAME__vNUMBER``,
so that old and new are side by side. Each class of processes in it follows the newest class of the same name that has
processes here, or that the shard begins with; in the order of the file, one when the one before is done: what others
depend on stands above them. How one process changes, and what takes a change back, says ``code_change.py``; if one
class is taken back, those before it are too.

Bound: 1 MiB of source; the last 100 releases are kept.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from actorgrid.errors import BadRequest, BodyTooLarge, StaleToken, WrongState

from .base import Process
from .code_change import CodeChange, change_code

if TYPE_CHECKING:
    from .shard import Shard

SOURCE_BYTES_MAX = 1 << 20
RELEASES_KEPT_MAX = 100
STEP_S = 0.01

ReleaseState = Literal["changing", "settled", "taken back"]


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """How a release stands in one shard."""

    number: int
    state: ReleaseState
    share: float
    classes: tuple[str, ...]
    changed: int
    skipped: int
    """Processes whose life is a coroutine without ``resume``: they keep their code."""
    crashes: int
    why: tuple[str, ...]
    """What failed, or crashed too often."""


@dataclass
class Release:
    """One version of a module here."""

    number: int
    name: str
    share: float
    failures_max: int
    crashes_max: int
    pairs: list[tuple[type[Process], type[Process]]]
    changes: list[CodeChange] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    state: ReleaseState = "changing"


class ShardReleases:
    """The releases of one shard, the newest last."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.releases: list[Release] = []
        self._before: dict[str, list[type[Process]]] = {}
        """By name, the classes that were the newest once, for who still begins processes by those."""

    def begin(
        self,
        number: int,
        name: str,
        source: str,
        share: float,
        failures_max: int = 0,
        crashes_max: int = 3,
        more: Iterable[type] = (),
    ) -> ReleaseReport:
        """Begin to change to a version; again with the same number: harmless.

        *more*: classes that the shard begins with, whether they have processes yet or not. Raises StaleToken for a
        number that is not greater, WrongState while the one before is only in part there, BadRequest, BodyTooLarge.
        """
        before = self.releases[-1] if self.releases else None
        if before is not None and number == before.number:
            return self.report(number)
        if before is not None and number < before.number:
            raise StaleToken("a later version is here already", asked=str(number), found=str(before.number))
        if before is not None and (before.state == "changing" or (before.share < 1 and before.state == "settled")):
            raise WrongState(
                f"version {before.number} of {before.name} is with {before.share:.0%} of the processes",
                asked=f"version {number}",
                hint="widen it to all, or take it back, before another follows",
            )
        module = _run(number, name, source)
        kinds = [kind for kind in vars(module).values() if _is_of(kind, module)]
        known = self._known(more)
        pairs = [(known[kind.__qualname__], kind) for kind in kinds if kind.__qualname__ in known]
        if not pairs:
            sys.modules.pop(module.__name__, None)
            raise BadRequest(
                f"{name} has no class of processes that are here",
                asked=", ".join(kind.__qualname__ for kind in kinds)[:200] or "no class of processes",
                found=", ".join(sorted(known))[:200] or "no processes",
                hint="a class follows the one of the same name",
            )
        mixed = [new.__qualname__ for old, new in pairs if hasattr(old, "run") != hasattr(new, "run")]
        if mixed:
            sys.modules.pop(module.__name__, None)
            raise BadRequest(
                f"of {', '.join(mixed)} one version lives in a coroutine, and one has handlers",
                hint="processes stay of their kind: give the new class another name, and start it beside the old",
            )
        release = Release(number, name, share, failures_max, crashes_max, pairs)
        self.releases.append(release)
        del self.releases[:-RELEASES_KEPT_MAX]
        self._step(release)
        return self.report(number)

    def widen(self, number: int, share: float) -> ReleaseReport:
        """Change more of the processes. Raises WrongState, BadRequest."""
        release = self._release(number)
        if release.state == "taken back":
            raise WrongState(f"version {number} was taken back", hint="deploy another")
        release.share = max(release.share, share)
        for change in release.changes:
            change.widen(release.share)
        release.state = "changing"
        self._step(release)
        return self.report(number)

    def take_back(self, number: int, why: str) -> ReleaseReport:
        """Give all processes the code of before, with the state of now; harmless when that was done."""
        release = self._release(number)
        if release.state != "taken back":
            release.state = "taken back"
            release.why.append(why)
            for change in reversed(release.changes):
                change.take_back()
                self._begin_by(change.old)
        return self.report(number)

    def report(self, number: int) -> ReleaseReport:
        """How a release stands."""
        release = self._release(number)
        self._step(release, again=False)
        changes = release.changes
        return ReleaseReport(
            number,
            release.state if all(change.done for change in changes) or release.state == "taken back" else "changing",
            release.share,
            tuple(new.__qualname__ for _, new in release.pairs),
            sum(change.changed for change in changes),
            sum(change.skipped for change in changes),
            sum(change.crashed for change in changes),
            tuple(release.why),
        )

    def _begin_by(self, kind: type[Process]) -> None:
        """Begin processes of this class where one of those before it is asked for."""
        for before in self._before.get(kind.__qualname__, ()):
            if before is not kind:
                self.shard.core.replace_class(before, kind)

    def _release(self, number: int) -> Release:
        for release in reversed(self.releases):
            if release.number == number:
                return release
        here = [release.number for release in self.releases]
        raise BadRequest("this shard has no such version", asked=str(number), found=str(here))

    def _step(self, release: Release, again: bool = True) -> None:
        """Go on with the next class, when all processes of the one before are changed."""
        if release.state == "taken back":
            return
        bad = next((change for change in release.changes if change.taken_back), None)
        if bad is not None:
            said = [f"{failed.pid}: {type(failed.error).__name__}: {failed.error}" for failed in bad.failed[:5]]
            self.take_back(release.number, f"{bad.new.__qualname__}: " + ("; ".join(said) or f"{bad.crashed} crashes"))
            return
        while all(change.done for change in release.changes):
            if len(release.changes) == len(release.pairs):
                release.state = "settled"
                if release.share == 1:
                    for old, new in release.pairs:
                        line = self._before.setdefault(new.__qualname__, [])
                        if old not in line:
                            line.append(old)
                        self._begin_by(new)
                break
            old, new = release.pairs[len(release.changes)]
            release.changes.append(
                change_code(
                    self.shard,
                    old,
                    new,
                    release.share,
                    failures_max=release.failures_max,
                    crashes_max=release.crashes_max,
                )
            )
        if again:
            self._look_later(release)

    def _look_later(self, release: Release) -> None:
        """Look again soon, and, as long as it is the newest, whether crashes have taken it back."""
        if release.state == "changing" or release is self.releases[-1]:
            delay_s = STEP_S if release.state == "changing" else 1.0

            def look() -> None:
                if not self.shard.closed and release is self.releases[-1] and release.state != "taken back":
                    self._step(release)

            self.shard.core.call_after(delay_s, look)

    def _known(self, more: Iterable[type]) -> dict[str, type[Process]]:
        """The newest class of each name that has processes here, or that the shard begins with."""
        known: dict[str, type[Process]] = {}
        for kind in (*more, *map(type, self.shard.core.processes())):
            is_process = isinstance(kind, type) and issubclass(kind, Process)
            if is_process and not kind.__module__.startswith("actorgrid.supervisors."):
                known[kind.__qualname__] = kind
        for release in self.releases:
            if release.state == "settled" and release.share == 1:
                known.update({new.__qualname__: new for old, new in release.pairs if new.__qualname__ in known})
        return known


def _run(number: int, name: str, source: str) -> ModuleType:
    """The module that the source makes. Raises BadRequest for what it raises, BodyTooLarge."""
    if len(source.encode("utf-8", "replace")) > SOURCE_BYTES_MAX:
        raise BodyTooLarge(f"a module of more than {SOURCE_BYTES_MAX} bytes", hint="import what is large")
    if not name.isidentifier():
        raise BadRequest("not the name of a module", asked=repr(name)[:80], hint="a file like counters.py")
    module = ModuleType(f"{name}__v{number}")
    file = f"<{name} version {number}>"
    module.__file__ = file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module  # what it defines is pickled by that name
    try:
        exec(compile(source, file, "exec"), vars(module))  # nosec B102 - the user's own code, in the user's own work
    except Exception as error:
        sys.modules.pop(module.__name__, None)
        why = f"{type(error).__name__}: {error}"
        raise BadRequest(f"{name} cannot be loaded: {why}", asked=f"version {number}") from error
    return module


def _is_of(kind: object, module: ModuleType) -> bool:
    return isinstance(kind, type) and issubclass(kind, Process) and kind.__module__ == module.__name__
