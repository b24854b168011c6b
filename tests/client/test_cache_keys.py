"""Digests of calls: the same in every process for the same code and values, another one for anything that differs."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from actorgrid import Dag
from actorgrid.client.cache_keys import CallDigests
from actorgrid.errors import BadRequest, InvalidGraph

SCALE = 2


def _no_step(_step: object) -> Any:
    raise AssertionError("there is none")


def digest(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    return CallDigests().of_call(fn, args, kwargs, _no_step, "the call")


def made(source: str, name: str = "f", **known: Any) -> Callable[..., Any]:
    """A function of a script, as it reads."""
    scope: dict[str, Any] = {"__name__": "__main__", **known}
    exec(textwrap.dedent(source), scope)
    found: Callable[..., Any] = scope[name]
    return found


PLAIN = "def f(x):\n    return x + 1\n"


def test_where_code_stands_and_what_else_is_there_changes_nothing() -> None:
    assert digest(made(PLAIN), 1) == digest(made("\n\n# moved\nother = 5\n" + PLAIN), 1)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x + 2\n",
        "def f(x):\n    return x - 1\n",
        "def f(x, y=1):\n    return x + 1\n",
        "def g(x):\n    return x\ndef f(x):\n    return g(x) + 1\n",
        "def f(x):\n    return (lambda y: y + 1)(x)\n",
    ],
)
def test_other_code_is_another_call(source: str) -> None:
    assert digest(made(source), 1) != digest(made(PLAIN), 1)


def test_what_a_function_refers_to_counts_as_deep_as_it_goes() -> None:
    source = "def h(x):\n    return x * SCALE\ndef g(x):\n    return h(x)\ndef f(x):\n    return g(x)\n"
    assert digest(made(source, SCALE=2), 1) == digest(made(source, SCALE=2), 1)
    assert digest(made(source, SCALE=3), 1) != digest(made(source, SCALE=2), 1)
    assert digest(made(source.replace("x * SCALE", "x ** SCALE"), SCALE=2), 1) != digest(made(source, SCALE=2), 1)
    closure = "def make(k):\n    def f(x):\n        return x + k\n    return f\n"
    assert digest(made(closure, "make")(1), 1) != digest(made(closure, "make")(2), 1)
    recursive = "def f(x):\n    return 1 if x < 2 else x * f(x - 1)\n"
    assert digest(made(recursive), 1) == digest(made(recursive), 1)


def test_of_two_that_call_each_other_neither_is_told_without_the_other() -> None:
    source = "def g(x):\n    return f(x - 1) if x else 0\ndef f(x):\n    return g(x) + 1\n"
    one, other = made(source), made(source.replace("+ 1", "+ 2"))
    digests, others = CallDigests(), CallDigests()
    for fn, each in ((one, digests), (other, others)):
        each.of_call(fn, (), {}, _no_step, "f, first")
    g, changed = one.__globals__["g"], other.__globals__["g"]
    assert digests.of_call(g, (), {}, _no_step, "g") != others.of_call(changed, (), {}, _no_step, "g")


def test_a_method_that_changes_is_another_class() -> None:
    source = "class C:\n    k = 1\n    def m(self, x):\n        return x + self.k\ndef f(x):\n    return C().m(x)\n"
    assert digest(made(source), 1) == digest(made(source), 1)
    assert digest(made(source.replace("x + self.k", "x - self.k")), 1) != digest(made(source), 1)
    assert digest(made(source.replace("k = 1", "k = 2")), 1) != digest(made(source), 1)


MODULES = {
    "rates": "RATE = 1\n",
    "stages": "from rates import RATE\ndef step():\n    return RATE\n",
    "pipeline": "import stages\ndef run():\n    return stages.step()\n",
    "unused": "X = 1\n",
    "ours/__init__": "",
    "ours/inner/__init__": "",
    "ours/inner/leaf": "from ..other import two\ndef one():\n    return two()\n",
    "ours/other": "def two():\n    return 2\n",
}


@pytest.mark.parametrize("by_value", [False, True], ids=["by name, as PYTHONPATH has it", "by value"])
@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("import pipeline\ndef f():\n    return pipeline.run()\n", {"pipeline", "stages", "rates"}),
        ("def f():\n    from pipeline import run\n    return run()\n", {"pipeline", "stages", "rates"}),
        ("from stages import step as f\n", {"stages", "rates"}),
        ("import ours.inner.leaf\ndef f():\n    return ours.inner.leaf.one()\n", {"ours/inner/leaf", "ours/other"}),
        ("from ours import inner\ndef f():\n    return inner.leaf.one()\n", {"ours/inner/leaf", "ours/other"}),
        ("def f():\n    from ours import other\n    return other.two()\n", {"ours/other"}),
    ],
)
def test_a_file_of_a_module_that_is_reached_by_any_way_counts(
    source: str, counts: set[str], by_value: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    names = {each.replace("/", ".").removesuffix(".__init__") for each in MODULES}

    def found(other: str = "") -> str:
        for each, text in MODULES.items():
            path = tmp_path / f"{each}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            text = text.replace("RATE = 1", "RATE = 2").replace("return ", "return 1 * ") + "Y = 3\n"
            path.write_text(text if each == other else MODULES[each])
        for name in names:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        modules = [importlib.import_module(name) for name in sorted(names)]
        for module in modules if by_value else ():
            cloudpickle.register_pickle_by_value(module)
        try:
            return digest(made(source))
        finally:
            for module in modules if by_value else ():
                cloudpickle.unregister_pickle_by_value(module)

    try:
        before = found()
        assert found() == before
        changed = {each for each in MODULES if found(each) != before}
        assert changed >= counts and "unused" not in changed
    finally:
        for name in names:
            sys.modules.pop(name, None)


@dataclass(frozen=True)
class Point:
    x: int
    y: int


def test_equal_values_are_the_same_call_and_others_are_not() -> None:
    fn = made(PLAIN)
    one, other = "ab" * 2, "".join(["ab", "ab"])
    assert digest(fn, [one, one]) == digest(fn, [one, other])
    assert digest(fn, {"b", "a", "c"}) == digest(fn, {"c", "b", "a"})
    assert digest(fn, Point(1, 2)) == digest(fn, Point(1, 2)) != digest(fn, Point(1, 3))
    assert digest(fn, a=1, b=2) == digest(fn, b=2, a=1)
    assert len({digest(fn, value) for value in (1, 1.0, True, "1", b"1", [1], (1,), {1: 1}, None)}) == 9


def test_another_process_finds_the_same() -> None:
    program = """
        import sys
        from actorgrid.client.cache_keys import CallDigests
        def helper(x): return {x, "a", "b"} & {"a", "b", "c"}
        def f(x): return helper(x)
        args = ([1, "two", {"three": 3.0}, {"p", "q", "r", "s"}, frozenset([1, 2])],)
        print(CallDigests().of_call(f, args, {}, None, "it"))
    """
    found = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


def request(dag: Dag) -> list[dict[str, Any]]:
    return list(dag.request(python="3.11")[0]["steps"])


def inc(x: int) -> int:
    return x + SCALE


def total(values: list[int]) -> int:
    return sum(values)


def test_a_graph_says_of_each_call_by_what_it_is_found() -> None:
    def graph(first: int) -> list[dict[str, Any]]:
        dag = Dag("keys", cache="inputs")
        shared = dag.value([1, 2, 3])
        a, b = dag.add(inc, first, id="a"), dag.add(total, shared, id="b")
        inner = dag.inline(inc, b)
        dag.add(total, [a, inner, b], id="c")
        dag.add(total, [b, inner, a], id="d")
        dag.options(cache="none").add(inc, 1)
        dag.options(cache="refresh").add(inc, 2)
        return request(dag)

    steps = {step["id"]: step.get("cache") for step in graph(1)}
    again = {step["id"]: step.get("cache") for step in graph(2)}
    assert steps["a"] != again["a"], "another argument"
    assert (steps["b"], steps["c"]) == (again["b"], again["c"]), "what is taken is told apart by its digest, later"
    assert steps["c"]["takes"] == ["a", "b"] and steps["d"]["takes"] == ["b", "a"]
    assert steps["c"]["call"] != steps["d"]["call"]
    assert steps["inc-2"] is None and steps["inc-3"]["refresh"]


def test_a_variable_has_everything_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def refreshed() -> list[Any]:
        dag = Dag("keys", cache="inputs")
        dag.add(inc, 1)
        dag.add(inc, 2, cache="none")
        return [step.get("cache") and step["cache"].get("refresh", False) for step in request(dag)]

    assert refreshed() == [False, None]
    monkeypatch.setenv("ACTORGRID_NO_CACHE", "1")
    assert refreshed() == [True, None]
    monkeypatch.setenv("ACTORGRID_NO_CACHE", "0")
    assert refreshed() == [False, None]


def test_what_has_no_digest_is_refused_by_name() -> None:
    dag = Dag("keys")
    loop: list[Any] = []
    loop.append(loop)
    dag.add(total, loop, id="circle", cache="inputs")
    with pytest.raises(InvalidGraph, match="step circle cannot be kept"):
        request(dag)


def test_wrong_words_are_refused_with_the_right_ones() -> None:
    with pytest.raises(BadRequest) as refused:
        Dag("keys", cache="input")
    assert refused.value.hint == "did you mean 'inputs'?"
    dag = Dag("keys")
    dag.run(["true"], cache="inputs")
    with pytest.raises(InvalidGraph, match="nobody knows what it leaves"):
        request(dag)


def test_truths_are_ways_to_take_results_over() -> None:
    dag = Dag("keys", cache=True)
    dag.run(["true"], outputs=["x"], id="found")
    dag.run(["true"], outputs=["x"], id="new", cache=False)
    dag.run(["true"], id="leaves nothing")
    assert ["cache" in step for step in request(dag)] == [True, False, False]
