"""Steps that give more steps: read with all checks, named after their parent, and each of them run to one result."""

from __future__ import annotations

import random
from typing import Any

import pytest

from actorgrid.actors.jobs import extensions
from actorgrid.actors.jobs.extensions import ReadExtension, read_further_steps
from actorgrid.actors.jobs.graph_spec import spec_of
from actorgrid.actors.ledger.tables import graphs
from actorgrid.dag.hosts import HostCapacity
from actorgrid.errors import CyclicGraph, InvalidGraph, MissingProducer, UnsatisfiableCost
from actorgrid.graph_extension import HEAD_BYTES, GraphExtension, write_extension

from .play import CRASH, Play, function, graph

FURTHER = [function("x"), function("y", ["x"]), {"id": "z", "command": "true", "after": ["y"]}]


def read(steps: list[dict[str, Any]], data: bytes | None = None, **more: Any) -> ReadExtension | None:
    spec = spec_of(graph(function("a", extends=True), function("b")))
    given = write_extension(GraphExtension(None, {"steps": steps}, b"calls")) if data is None else data
    hosts = more.pop("hosts", {})
    capacities = more.pop("capacities", [])
    return read_further_steps(spec, 0, lambda at, size: given[at : at + size], hosts, capacities)


def test_further_steps_are_named_after_who_gave_them() -> None:
    found = read([*FURTHER, {**function("w", ["x"]), "when": [{"step": "y", "word": 1}], "collocated": "x"}])
    assert found is not None
    assert [step.id for step in found.spec.request.steps] == ["a", "b", "a/x", "a/y", "a/z", "a/w"]
    assert found.spec.step(3).inputs[0].step == "a/x"
    assert found.spec.step(4).after == ["a/y"]
    assert (found.spec.step(5).when[0].step, found.spec.step(5).collocated) == ("a/y", "a/x")
    assert found.spec.bundles[2] == found.to_record(0, 2)["files"][1]
    assert found.to_record(0, 2)["steps"] == 4


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([], InvalidGraph),
        ([{"id": "x"}], InvalidGraph),
        ([function("x", ["b"])], MissingProducer),
        ([function("x", ["y"]), function("y", ["x"])], CyclicGraph),
        ([function("x"), function("x")], InvalidGraph),
        ([function("x" * 99)], InvalidGraph),
        ([function("x", needs={"licence": 1})], InvalidGraph),
        ([function("x", cpus=64)], UnsatisfiableCost),
        ([function("x", node="nowhere")], UnsatisfiableCost),
        ([{"id": "x", "command": ["a"] * 5_000}], InvalidGraph),
    ],
)
def test_what_is_wrong_with_them_is_named(steps: list[dict[str, Any]], error: type[Exception]) -> None:
    with pytest.raises(error):
        read(steps, capacities=[HostCapacity("h", 8000)])


def test_bytes_that_are_none_give_nothing_and_damaged_ones_are_refused() -> None:
    whole = write_extension(GraphExtension(None, {"steps": FURTHER}, b"calls"))
    assert read([], data=b"") is None
    assert read([], data=b"\x93" * 100) is None
    for damaged in (whole[:-1], whole[:HEAD_BYTES], whole[:HEAD_BYTES] + bytes(len(whole)), whole[:8] + b"\xff" * 99):
        with pytest.raises(InvalidGraph):
            read([], data=damaged)
    with pytest.raises(InvalidGraph, match="further steps"):
        GraphExtension(1, {}, b"").__reduce__()


def test_more_steps_follow_and_steps_of_these_too() -> None:
    play = Play(
        graph(function("a", extends=True), function("b", ["a"])),
        further={
            "a": [function("x"), function("y", ["x"], extends=True)],
            "a/y": [function("deep"), function("er", ["deep"])],
        },
    )
    assert play.run() == "succeeded"
    assert sorted(play.done()) == ["a", "a/x", "a/y", "a/y/deep", "a/y/er", "b"]
    assert play.job["graph"]["steps"] == 6
    assert [each["parent"] for each in play.job["graph"]["extensions"]] == [0, 3]


def test_who_may_give_more_need_not() -> None:
    play = Play(graph(function("a", extends=True), function("b", ["a"])))
    assert play.run() == "succeeded"
    assert play.done() == ["a", "b"]


def test_a_graph_that_grows_without_end_fails_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (extensions, graphs):
        monkeypatch.setattr(module, "EXTENSIONS_MAX", 5)
    steps = [function(f"s{number}", extends=True) for number in range(7)]
    play = Play(graph(*steps), further={f"s{number}": [function("x")] for number in range(7)})
    assert play.run() == "failed"
    assert len(play.job["graph"]["extensions"]) == 5
    assert "grows too large" in play.job["error"]["found"]


@pytest.mark.parametrize("seed", range(12))
def test_every_further_step_has_one_result_whatever_fails(seed: int) -> None:
    dice = random.Random(seed)
    steps = [function(f"s{n}", [f"s{n - 1}"] if n % 3 else [], extends=n % 4 == 0, retries=50) for n in range(12)]
    further = {
        f"s{n}": [function(f"f{m}", [f"f{m - 1}"] if m % 2 else [], retries=50) for m in range(dice.randrange(1, 6))]
        for n in range(0, 12, 4)
    }

    def gives(play: Play, _step: int, _run: int) -> Any:
        return dice.choice([None, None, None, CRASH, ValueError("no")])

    play = Play(graph(*steps), hosts=4, gives=gives, further=further, seed=seed)
    lost = iter(["h1", "h2"])
    while play.job["state"] == "running":
        at = len(play.ran) + dice.randrange(1, 8)
        play.run(until=lambda at=at: len(play.ran) >= at)  # type: ignore[misc]
        if dice.random() < 0.3 and (host := next(lost, "")):
            play.lose_host(host)
        if dice.random() < 0.6:
            play.lead()
    assert play.job["state"] == "succeeded"
    assert set(play.states.values()) == {"succeeded"}
    assert len(play.states) == 12 + sum(map(len, further.values()))
    parents = [each["parent"] for each in play.job["graph"]["extensions"]]
    assert sorted(parents) == [0, 4, 8], "each of them was extended once"


def test_a_lost_result_is_made_again_before_its_further_steps_are_known() -> None:
    play = Play(graph(function("a", extends=True)), further={"a": [function("x")]})
    looked_for = play._extend
    play._extend = lambda: None  # type: ignore[method-assign]
    play.run(until=lambda: play.states["a"] == "succeeded")
    assert play.job["state"] == "running"
    play.results_at.clear()
    play._extend = looked_for  # type: ignore[method-assign]
    play.lead()
    assert play.run() == "succeeded"
    assert play.done() == ["a", "a", "a/x"]
