"""Graphs of steps in Python: calls that take each other's values, submitted together as one job.

``dag.add(fn, ...)`` adds a call; what it gives, a :class:`Step`, stands for its value wherever an argument may be, at
any depth. Nothing runs before the graph is submitted: by ``client.dag(dag)``, or at the end of
``with client.dag() as dag:``.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import operator
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, ParamSpec, TypeVar

from actorgrid.dag.command_cache import MODES
from actorgrid.dag.early_stopping import StoppingRule, rule_of, to_plain
from actorgrid.errors import BadRequest, InvalidGraph, WrongState

from . import task as task_module
from .command_steps import add_command
from .keywords import name_of
from .step_options import FORWARDED, PLAIN_OPTIONS, check_options, fields_of, of_the_whole_graph, options_and_keywords
from .task import Task
from .user import user_name

if TYPE_CHECKING:
    from types import TracebackType

    from .client import Client
    from .environment import Environment, Packages
    from .graph_run import GraphRun

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
ROUNDS_MAX = 1_000
CACHE_MODES = MODES
Word = bool | int | float | str | None


class Step(Generic[T_co]):
    """One step of a graph, and its value wherever it is an argument of another. ``step[0]`` is an item of the value."""

    def __init__(self, dag: Dag, number: int, id: str) -> None:
        self.dag = dag
        self.number = number
        self.id = id

    def __getitem__(self, key: Any) -> StepItem:
        if self.dag._steps[self.number].request.get("stream"):
            raise TypeError(f"step {self.id} streams: the step that takes it iterates over its items")
        return StepItem(self, key)

    def __iter__(self) -> NoReturn:
        raise TypeError(f"step {self.id} has no value yet: it cannot be iterated; step[0] is an item of its value")

    def __bool__(self) -> NoReturn:
        raise TypeError(f"step {self.id} has no value yet: dag.when(step, True) has others depend on it")

    def __repr__(self) -> str:
        return f"<step {self.id}>"

    def __reduce__(self) -> NoReturn:
        raise BadRequest(
            f"step {self.id} can only be an argument of another step of its graph",
            asked=repr(self),
            hint="submit the graph, and take the value from its run: run[step].result()",
        )


@dataclass(frozen=True, slots=True)
class StepItem:
    """An item of what a step gives."""

    step: Step[Any]
    key: Any

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError("an item of an item: add a step that takes it")

    def __reduce__(self) -> Any:
        return operator.getitem, (self.step, self.key)


@dataclass(slots=True)
class Function:
    """A call as the design of the distributed executor has it: ``code(*values of args, *extra_args)``.

    *args* name other functions, or (other function, item of its value). *cost* is a map: ``runtime_s``,
    ``output_bytes``, ``cpus``, ``memory``, ``gpus``, ``gpu_memory``, and amounts of the graph's own resources. *inline*
    ones are computed anew wherever their value is wanted; *results* are there once it has run.
    """

    id: str
    args: Sequence[str | tuple[str, Any]]
    code: Callable[..., Any]
    results: Any = None
    node: str | None = None
    cost: Mapping[str, Any] = field(default_factory=dict)
    extra_args: Sequence[Any] = ()
    retries: int = 0
    inline: bool = False
    collocated: str | None = None


class _Call(NamedTuple):
    fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class _Step:
    """A step as it was added. ``how``: what is to be told of its value; ``call`` is ``None`` for a command or merge."""

    request: dict[str, Any]
    call: _Call | None = None
    value: Any = None
    how: dict[str, Any] = field(default_factory=dict)


class _Building(threading.local):
    def __init__(self) -> None:
        self.dags: list[Dag] = []


_building = _Building()


class Dag:
    """A graph that is being made. Not to be changed by several threads at once.

    *strategy* decides which step runs where; *on_failure*: ``fail_fast`` or ``continue``; *in_parallel*: how many steps
    may run at once (0: any number); *resources*: what the graph counts by itself, as ``{"licence": 2}``;
    *env*: environment variables of all steps, or their Python environment as it is given to a client, with *python*;
    *cache*: ``inputs`` takes results over from earlier graphs of the same user, where code, arguments and inputs are
    the same, ``refresh`` computes them anew and keeps them, ``none``. Raises BadRequest.
    """

    def __init__(
        self,
        name: str = "",
        *,
        strategy: str = "time_optimized",
        on_failure: str = "fail_fast",
        in_parallel: int = 0,
        resources: Mapping[str, int] | None = None,
        env: Mapping[str, str] | Environment | Packages | None = None,
        python: str | None = None,
        priority: int = 50,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        notify: Sequence[str] = (),
        notify_on: Sequence[str] = (),
        cache: str | bool = "none",
        id: str | None = None,
    ) -> None:
        self._cache = cache_mode(cache)
        self.environment: Environment | None = None
        if env is not None or python is not None:
            from .environment import environment_from

            self.environment = environment_from(env, python)
        self.id = id or uuid.uuid4().hex
        self.name = name
        self._fields: dict[str, Any] = {
            "strategy": strategy,
            "on_failure": on_failure,
            "in_parallel": in_parallel,
            "resources": dict(resources or {}),
            "env": dict(env) if isinstance(env, Mapping) else {},
            "priority": priority,
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
            **({"notify": list(notify), "notify_on": list(notify_on)} if notify or notify_on else {}),
        }
        self._steps: list[_Step] = []
        self._ids: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._when: list[tuple[Step[Any], Word, bool]] = []
        self._words: dict[int, list[Word]] = {}  # by step, those that conditions have asked it for
        self._client: Client | None = None
        self._run: GraphRun | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        return f"<dag {self.name or self.id}: {len(self)} steps>"

    # -- adding

    def add(self, fn: Callable[..., T] | Task[..., T], /, *args: Any, **keywords: Any) -> Step[T]:
        """Add a call; gives the step. Keywords are options of the step or the function's own, whoever knows them; what
        both know is refused: ``dag.options(id=...).add(fn, ...)`` says the options first.

        Options: those of a task (``gpus``, ``memory``, ``retries``, ``timeout``, ...), ``id``, ``after`` (steps that
        only come before it), ``runtime_s`` and ``output_bytes`` (estimates), ``cost`` (a map with all of these),
        ``needs`` (amounts of the graph's resources), ``node`` (a host), ``collocated`` (another step), ``cache`` (as of
        the graph), ``stream`` (what it yields goes to the steps that take it while it runs).
        Raises BadRequest, AmbiguousKeyword.
        """
        code = fn.fn if isinstance(fn, Task) else fn
        options, kwargs = options_and_keywords(code, len(args), keywords)
        return self._add_call(fn, args, kwargs, options)

    def options(self, **options: Any) -> StepAdder:
        """Adds calls with these options, all of whose keywords are the function's own."""
        check_options(options)
        return StepAdder(self, options)

    def map(self, fn: Callable[..., T] | Task[..., T], /, *iterables: Iterable[Any], **keywords: Any) -> list[Step[T]]:
        """Add a call for each item; gives the steps in order."""
        return [self.add(fn, *items, **keywords) for items in zip(*iterables, strict=False)]

    def run(self, command: Sequence[str], /, **options: Any) -> Step[None]:
        """Add a command. Options as for ``add``; ``cwd``, a directory; ``outputs``, the files and folders that it is to
        leave there, which are its value (a StepFiles); ``inputs``, commands whose outputs are put there before; and
        ``files``, which it reads: with ``cache``, it does not run where it has run with the same in them;
        ``checkpoint``, a directory whose content follows it (or ``{"path": ..., "every_s": ...}``), as of a job.

        With ``until`` and ``rounds`` it runs again and again, until the last line that it prints is that, at most so
        many times; each round is a step. Raises BadRequest, InvalidGraph, UnboundedLoop.
        """
        return add_command(self, command, options)

    def value(self, value: T, /, id: str | None = None) -> Step[T]:
        """Add a value: it is sent once, however many steps take it."""
        step: Step[T] = self._add("value", {"kind": "value"}, {"id": id} if id else {})
        self._steps[step.number].value = value
        return step

    def inline(self, fn: Callable[..., T] | Task[..., T], /, *args: Any, **kwargs: Any) -> Step[T]:
        """Add a call that is no step of its own: it is computed anew in each step that takes its value."""
        code = fn.fn if isinstance(fn, Task) else fn
        step: Step[T] = self._add(name_of(code), {"kind": "inline", "function": name_of(code)}, {})
        self._steps[step.number].call = _Call(code, args, kwargs)
        return step

    def add_function(self, function: Function) -> Step[Any]:
        """Add a call in the words of :class:`Function`; those that it names in ``args`` must be there."""
        values: list[Any] = []
        for each in function.args:
            id, *item = (each,) if isinstance(each, str) else each
            step = self.step(id)
            values.append(step[item[0]] if item and item[0] is not None else step)
        if function.inline:
            made = self.inline(function.code, *values, *function.extra_args)
            return self._renamed(made, function.id)
        options = {"id": function.id, "cost": function.cost, "retries": function.retries}
        if function.node:
            options["node"] = function.node
        if function.collocated:
            options["collocated"] = function.collocated
        return self.options(**options).add(function.code, *values, *function.extra_args)

    # -- branches and loops

    @contextmanager
    def when(self, step: Step[Any], word: Word = True) -> Iterator[None]:
        """Steps added inside run only if *step* gives *word*: a truth, a number or a short text; else they are passed
        over, with all that takes their values."""
        self._own(step)
        self._tells(step)
        words = self._words.setdefault(step.number, [])
        if word not in words:
            words.append(word)
        with self._under([(step, word, False)]):
            yield

    @contextmanager
    def otherwise(self, step: Step[Any]) -> Iterator[None]:
        """Steps added inside run only if *step* gave none of the words that ``when`` has asked it for until here.
        Raises InvalidGraph where it was asked for none."""
        self._own(step)
        words = self._words.get(step.number)
        if not words:
            raise InvalidGraph(
                f"nothing hangs on what step {step.id} gives",
                asked="otherwise",
                hint="dag.when(step, word) comes first",
            )
        with self._under([(step, word, True) for word in words]):
            yield

    def merge(self, *steps: Step[T], id: str | None = None) -> Step[T]:
        """The value of the first of *steps* that was not passed over: where branches come together."""
        return self._merge(steps, id or "merge", last=False)

    def loop(
        self, fn: Callable[..., T], start: Any, /, *args: Any, until: Callable[[Any], bool], rounds: int, **options: Any
    ) -> Step[T]:
        """``fn(value, *args)`` again and again, each time with what it gave, until ``until(value)`` or *rounds* times.

        Each round is a step (``id[1]``, ``id[2]``, ...), so what is done stays done. Gives the last value. Options as
        for ``add``; *fn* gets no keywords.
        """
        if not 1 <= rounds <= ROUNDS_MAX:
            raise BadRequest("a loop has a bound", asked=f"rounds={rounds}", hint=f"1 to {ROUNDS_MAX}")
        id = options.pop("id", None) or self._new_id(name_of(fn))
        made: list[Step[T]] = []
        for number in range(1, rounds + 1):
            before = made[-1] if made else start
            conditions = [*self._when, (made[-1], False, False)] if made else list(self._when)
            step = self._with(conditions, fn, (before, *args), {**options, "id": f"{id}[{number}]"})
            self._steps[step.number].how["until"] = until
            made.append(step)
        return self._merge(made, id, last=True)

    # -- sweeps

    def sweep(
        self,
        fn: Callable[..., T],
        /,
        *,
        options: Mapping[str, Any] | None = None,
        stop: str | StoppingRule | None = None,
        report: Literal["min", "max"] = "min",
        **grid: Iterable[Any],
    ) -> dict[tuple[tuple[str, Any], ...], Step[T]]:
        """Add ``fn(**point)`` for each point of the grid: ``sweep(train, lr=[0.1, 0.01], seed=range(5))``. Gives each
        point's step, by the point.

        *stop*: ``asha``, ``median``, or a rule with other figures: trials that report metrics
        (``actorgrid.report(step=, metric=)``) end early where it says so, and give a ``StoppedTrial``. *report*:
        whether small metrics are good, or large ones. Raises BadRequest.
        """
        sweep: dict[str, Any] = {}
        if stop is not None:
            if report not in ("min", "max"):
                raise BadRequest(
                    "metrics are good when small or when large", asked=f"report={report!r}", hint="min, max"
                )
            sweep = {"id": f"{self.id}.{len(self)}", "mode": report, "rule": to_plain(rule_of(stop))}
        adder = self.options(**(options or {}))
        made: dict[tuple[tuple[str, Any], ...], Step[T]] = {}
        for trial, point in enumerate(itertools.product(*grid.values())):
            own = tuple(zip(grid, point, strict=True))
            made[own] = adder.add(fn, **dict(own))
            if sweep:
                self._steps[made[own].number].how["sweep"] = {**sweep, "trial": trial}
        return made

    # -- looking

    def step(self, id: str) -> Step[Any]:
        """The step of that id. Raises InvalidGraph, with the nearest."""
        number = self._ids.get(id)
        if number is None:
            near = difflib.get_close_matches(id, self._ids, n=1)
            raise InvalidGraph(
                f"there is no step {id!r}", asked=id, hint=f"did you mean {near[0]!r}?" if near else "add it before"
            )
        return Step(self, number, id)

    @property
    def steps(self) -> list[Step[Any]]:
        """All steps, in the order in which they were added."""
        return [Step(self, number, id) for id, number in self._ids.items()]

    @property
    def submitted(self) -> GraphRun:
        """The run of the graph, once it was submitted. Raises WrongState."""
        if self._run is None:
            raise WrongState(f"dag {self.name or self.id} is not submitted", hint="client.dag(dag), or leave its with")
        return self._run

    # -- with client.dag() as dag:

    def __enter__(self) -> Dag:
        """Have calls of ``@task`` functions become steps, until the end of the block."""
        _building.dags.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        _building.dags.remove(self)
        if kind is None and self._client is not None and self._steps:
            self._run = self._client.dag(self)

    # -- what is sent

    def check_plain(self) -> None:
        """Raises InvalidGraph where anything is said that holds for a graph as a whole: an extension has none of it."""
        plain = Dag()
        said = [name for name, value in self._fields.items() if value != plain._fields[name]]
        if said or self.environment is not None or self._client is not None:
            raise InvalidGraph(
                "what holds for a graph as a whole is said of the graph that is extended",
                asked=", ".join(said) or "an environment, or a client",
                hint="actorgrid.extend(Dag())",
            )

    def request(
        self,
        *,
        directory: bool = True,
        installed: bool = True,
        python: str,
        relative: bool = False,
        refresh: bool = False,
        working_dir: str = "",
    ) -> tuple[dict[str, Any], bytes]:
        """The body of the request for it, and the file with what its steps run (empty: they are commands).

        *directory*, *installed*: whether this process's directory and distributions are told, as for a job. *relative*:
        its steps are to follow in another graph, under numbers that are not known yet. *refresh*: nothing is taken over
        from earlier graphs; what is computed is kept. *working_dir*: the directory that is sent along.
        Raises UnpicklableFunction, which names the part of a step that cannot be sent.
        """
        from .dag_bundle import bundle_of

        bundle, steps = bundle_of(self, self._steps, directory, installed, self._cache, relative, refresh, working_dir)
        fields = {name: value for name, value in self._fields.items() if value}
        request = {
            "graph_id": self.id,
            "name": self.name,
            "user_id": user_name(),
            **fields,
            "steps": steps,
        }
        if bundle:
            request |= {"python": python, "bundle": hashlib.sha256(bundle).hexdigest()}
        return request, bundle

    # -- inside

    def _add_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> Step[Any]:
        code = fn
        if isinstance(fn, Task):
            code = fn.fn
            own = fn.task_options
            if own.environment is not None:
                raise of_the_whole_graph(own.environment)
            given = {
                name: getattr(own, name) for name in FORWARDED if getattr(own, name) != getattr(PLAIN_OPTIONS, name)
            }
            options = {**given, **options}
        called = name_of(code)
        module = str(getattr(code, "__module__", "") or "")
        request = {"kind": "function", "function": f"{module}.{called}"[-200:]}
        step = self._add(called, request, options)
        self._steps[step.number].call = _Call(code, args, kwargs)
        return step

    def _with(
        self,
        conditions: list[tuple[Step[Any], Word, bool]],
        fn: Any,
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Step[Any]:
        kept, self._when = self._when, conditions
        try:
            return self._add_call(fn, args, {}, options)
        finally:
            self._when = kept

    @contextmanager
    def _under(self, conditions: list[tuple[Step[Any], Word, bool]]) -> Iterator[None]:
        kept, self._when = self._when, [*self._when, *conditions]
        try:
            yield
        finally:
            self._when = kept

    def _merge(self, steps: Sequence[Step[Any]], id: str, *, last: bool) -> Step[Any]:
        if not steps:
            raise BadRequest("a merge takes steps", hint="dag.merge(one, other)")
        for step in steps:
            self._own(step)
            if self._steps[step.number].request.get("stream"):
                raise InvalidGraph(
                    f"a merge takes no items, and step {step.id} gives some", hint="have a step take them"
                )
        request = {"kind": "merge", "inputs": [step.id for step in steps], **({"last": True} if last else {})}
        return self._add(id, request, {})

    def _add(self, called: str, request: dict[str, Any], options: Mapping[str, Any]) -> Step[Any]:
        if self._run is not None:
            raise WrongState("the graph is submitted already", hint="make another Dag")
        options = dict(options)
        id = options.pop("id", None) or self._new_id(called)
        if id in self._ids:
            raise InvalidGraph(f"two steps are called {id!r}", asked=str(id), hint="each has an id of its own")
        request = {"id": id, **request, **fields_of(options)}
        after = [self._named(each) for each in request.pop("after", ())]
        if after:
            request["after"] = after
        if "collocated" in request:
            request["collocated"] = self._named(request["collocated"])
        if self._when and request["kind"] not in ("value", "inline"):
            request["when"] = [
                {"step": step.id, "word": word, **({"negated": True} if negated else {})}
                for step, word, negated in self._when
            ]
        number = len(self._steps)
        self._steps.append(_Step(request))
        self._ids[id] = number
        return Step(self, number, id)

    def _named(self, step: Any) -> str:
        if isinstance(step, Step):
            self._own(step)
            return step.id
        return self.step(str(step)).id

    def _renamed(self, step: Step[Any], id: str) -> Step[Any]:
        if id in self._ids:
            raise InvalidGraph(f"two steps are called {id!r}", asked=id, hint="each has an id of its own")
        del self._ids[step.id]
        self._ids[id] = step.number
        self._steps[step.number].request["id"] = id
        return Step(self, step.number, id)

    def _own(self, step: Any) -> None:
        if not isinstance(step, Step) or step.dag is not self:
            raise InvalidGraph(
                "that is no step of this graph", asked=repr(step)[:200], hint="steps come from dag.add(...)"
            )

    def _tells(self, step: Step[Any]) -> None:
        own = self._steps[step.number]
        kind = own.request["kind"]
        if kind == "merge":
            for id in own.request["inputs"]:
                self._tells(self.step(id))
        elif kind not in ("function", "command"):
            raise InvalidGraph(
                f"step {step.id} gives no word",
                asked=step.id,
                hint="conditions are about what functions give, and the last lines that commands print",
            )
        elif kind == "function":
            own.how.setdefault("word", True)

    def _new_id(self, called: str) -> str:
        base = called[:80] or "step"
        if base not in self._ids:
            self._counts.setdefault(base, 1)
            return base
        while True:
            number = self._counts[base] = self._counts.get(base, 1) + 1
            if f"{base}-{number}" not in self._ids:
                return f"{base}-{number}"


class StepAdder:
    """Adds calls with options that were said before."""

    def __init__(self, dag: Dag, options: Mapping[str, Any]) -> None:
        self._dag = dag
        self._options = dict(options)

    def add(self, fn: Callable[..., T] | Task[..., T], /, *args: Any, **kwargs: Any) -> Step[T]:
        """Add a call; all keywords are the function's own."""
        return self._dag._add_call(fn, args, kwargs, self._options)


def step_instead(task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step[Any] | None:
    """The step that a call of a ``@task`` function is inside of ``with dag:``; ``None`` elsewhere."""
    if not _building.dags:
        return None
    return _building.dags[-1]._add_call(task, args, kwargs, {})


def cache_mode(mode: str | bool) -> str:
    """*mode*, which is one of ``CACHE_MODES``; a truth stands for ``inputs`` and ``none``. Raises BadRequest."""
    if isinstance(mode, bool):
        return "inputs" if mode else "none"
    if mode not in CACHE_MODES:
        near = difflib.get_close_matches(str(mode), CACHE_MODES, n=1)
        raise BadRequest(
            "there is no such way to take results over",
            asked=f"cache={mode!r}"[:100],
            found=f"known: {', '.join(CACHE_MODES)}",
            hint=f"did you mean {near[0]!r}?" if near else "",
        )
    return mode


task_module._steps_instead = step_instead
