"""Results of earlier graphs taken over: what is found, what is not, and what happens when it is gone after all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from actorgrid.actors.jobs.graph_spec import spec_of
from actorgrid.actors.jobs.step_cache import step_key
from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command import read_command
from actorgrid.errors import BadRequest, HostsTooOld, WrongState

from .play import Play, function, graph


def kept(id: str, inputs: tuple[str, ...] = (), call: str = "", **more: Any) -> dict[str, Any]:
    cache = {"call": (call or id).encode().hex().rjust(64, "0"), "takes": list(inputs), **more.pop("how", {})}
    return function(id, inputs, cache=cache, **more)


def diamond(graph_id: str, **changed: str) -> Any:
    steps = [kept("a"), kept("b", ("a",)), kept("c", ("a",)), kept("d", ("b", "c"))]
    for step in steps:
        if step["id"] in changed:
            step["cache"]["call"] = changed[step["id"]].encode().hex().rjust(64, "0")
    return graph(*steps, graph_id=graph_id)


def by_number(play: Play, step: int, _run: int) -> Any:
    """What steps of these graphs give: what their call says."""
    cache = play.request.steps[step].cache
    return cache.call if cache is not None else step


def test_the_same_graph_again_runs_nothing() -> None:
    play = Play(diamond("one"), gives=by_number)
    assert play.run() == "succeeded"
    ran = len(play.ran)
    play.submit(diamond("two"))
    assert play.run() == "succeeded"
    assert len(play.ran) == ran == 4
    for number in range(4):
        first, second = play.ledger.steps.get("one", number), play.ledger.steps.get("two", number)
        assert second["cached_from"] == ["one", number]
        assert [second[name] for name in ("host", "attempt_id", "offset", "size", "digest")] == [  # type: ignore[literal-required]
            first[name]
            for name in ("host", "attempt_id", "offset", "size", "digest")  # type: ignore[literal-required]
        ]
    play.submit(diamond("three"))
    assert play.run() == "succeeded"
    assert len(play.ran) == 4


def test_what_changed_runs_with_what_takes_from_it() -> None:
    play = Play(diamond("one"), gives=by_number)
    play.run()
    play.submit(diamond("two", b="other"))
    play.run()
    assert play.done()[4:] == ["b", "d"], "c takes nothing from b"
    play.submit(graph(kept("a"), kept("b", ("a",), how={"refresh": True}), graph_id="three"))
    play.run()
    assert play.done()[6:] == ["b"], "it is computed anew where that is asked for"


def test_what_gives_the_same_value_lets_others_be_found() -> None:
    play = Play(diamond("one"), gives=by_number)
    play.run()

    def as_before(play: Play, step: int, run: int) -> Any:
        return b"b".hex().rjust(64, "0") if step == 1 else by_number(play, step, run)

    play.gives = as_before
    play.submit(diamond("two", b="other code, the same value"))
    play.run()
    assert play.done()[4:] == ["b"]


def test_nobody_finds_what_another_user_ran() -> None:
    play = Play(diamond("one"), gives=by_number)
    play.run()
    play.submit(diamond("two"), user_id="bob")
    with pytest.raises(WrongState, match="nothing to take over"):
        play.do(commands.AdvanceGraph("two", play._term, [], [], [], [], cached=[[0, "one", 0]]))
    assert play.run() == "succeeded"
    assert len(play.ran) == 8


def test_results_that_are_gone_are_made_again() -> None:
    play = Play(graph(kept("a"), kept("b", ("a",)), graph_id="one"), gives=by_number)
    play.run()
    play.submit(graph(kept("a"), kept("b", ("a",), call="new"), graph_id="two"))
    found = play.execution.decide(play_capacity(play), play.now)
    assert found.cached == [[0, "one", 0]]  # type: ignore[union-attr]
    play.lead()
    play.results_at.clear()  # whoever kept it has dropped it since
    assert play.run() == "succeeded"
    assert play.done()[2:] == ["a", "b"]
    assert "cached_from" not in play.ledger.steps.get("two", 0)


def play_capacity(play: Play) -> Any:
    from actorgrid.actors.jobs.decisions import ClusterCapacity

    return ClusterCapacity(play.slots * len(play.alive), frozenset(play.alive))


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_host_and_a_lost_leader_cost_nothing_but_time(seed: int) -> None:
    dice = random.Random(seed)
    steps = [kept(f"s{n}", tuple(f"s{m}" for m in range(max(0, n - 3), n) if dice.random() < 0.6)) for n in range(30)]
    play = Play(graph(*steps, graph_id="one"), gives=by_number, hosts=3)
    play.run()
    for step in steps[15:20]:
        step["cache"]["call"] = f"{int(step['cache']['call'], 16) + 1:064x}"
    play.submit(graph(*steps, graph_id="two"))
    play.run(until=lambda: len(play.ran) > 32)
    play.lose_host("h1")
    play.lead()
    assert play.run() == "succeeded"
    assert set(play.states.values()) == {"succeeded"}


def test_the_key_is_of_all_that_a_call_finds_around_it() -> None:
    def key(**more: Any) -> bytes | None:
        step = kept("a", env=more.pop("step_env", {}))
        return step_key(spec_of(graph(step, **more)), 0, lambda _number: "d")

    found = [key(), key(env={"A": "1"}), key(env={"A": "2"}), key(step_env={"A": "1"}), key(environment="ab" * 32)]
    found += [key(working_dir="ab" * 32), key(python="3.12")]
    assert None not in found
    assert len(set(found)) == len(found)
    assert key(name="other", priority=9, graph_id="else") == key()


def test_a_command_is_kept_that_says_what_it_leaves() -> None:
    with pytest.raises(ValueError, match="commands that name their outputs"):
        graph({"id": "x", "command": "true", "cache": {"call": "0" * 64}})


def commands_of(graph_id: str, first: str = "1", **more: Any) -> Any:
    made = {"id": "a", "command": "make", "outputs": ["a"], "cache": {"call": first * 64}}
    taking = {"id": "b", "command": "use", "inputs": ["a"], "outputs": ["b"]}
    taking |= {"cache": {"call": "2" * 64, "takes": ["a"]}, "when": {"step": "a", "word": "yes"}}
    return graph(made, taking, graph_id=graph_id, **more)


def yes(play: Play, step: int, _run: int) -> str:
    return "yes"


def test_commands_in_a_directory_that_was_sent_do_not_run_again() -> None:
    play = Play(commands_of("one", working_dir="ab" * 32), gives=yes)
    assert play.run() == "succeeded"
    jobs = play.jobs_run
    play.submit(commands_of("two", working_dir="ab" * 32))
    assert play.run() == "succeeded"
    assert play.jobs_run == jobs == 2
    play.submit(commands_of("three", working_dir="cd" * 32))
    play.run()
    assert play.done() == ["a", "b"] * 2, "another directory may hold anything"


def test_outputs_of_commands_are_put_back_where_others_see_them() -> None:
    play = Play(commands_of("one"), gives=yes)
    play.run()
    play.submit(commands_of("two"))
    assert play.run() == "succeeded"
    assert play.done() == ["a", "b"], "each had a job that only put them back"
    assert play.jobs_run == 4
    second = play.ledger.steps.get("two", 0)
    assert second["cached_from"] == ["one", 0]
    assert second["word"] == "yes"
    play.submit(commands_of("three", first="3"))
    play.run()
    assert play.done()[2:] == ["a"], "what it left was the same, so who takes that need not run"


def test_outputs_that_are_gone_are_made_again() -> None:
    play = Play(commands_of("one"), gives=yes)
    play.run()
    play.submit(commands_of("two"))
    play.advance()
    play.results_at.clear()
    assert play.run() == "succeeded"
    assert play.done() == ["a", "b"] * 2
    assert "cached_from" not in play.ledger.steps.get("two", 0)


def test_who_asks_for_a_word_finds_nothing_that_said_none() -> None:
    plain = {"id": "a", "command": "make", "outputs": ["a"], "cache": {"call": "1" * 64}}
    play = Play(graph(plain, graph_id="one"), gives=yes)
    play.run()
    play.submit(commands_of("two"))
    assert play.run() == "succeeded"
    assert play.done() == ["a", "a", "b"]


def test_hosts_of_the_version_before_are_asked_nothing_that_they_do_not_know() -> None:
    old = {"1": {"ledger_version": 8, "host_id": "x"}}
    plain = commands.AdvanceGraph("g", 1, [], [], [], [], cached=[[0, "one", 0]], at=1.0).to_plain()
    assert plain["v"] == 9
    with pytest.raises((BadRequest, HostsTooOld)):
        read_command(plain, old)  # type: ignore[arg-type]
    assert commands.AdvanceGraph("g", 1, [], [], [], [], at=1.0).to_plain()["v"] == 8
    for wrong in ([[0, "one"]], [[0, "one", 0], [0, "one", 1]], [["0", "one", 0]], [[0, 1, 0]]):
        with pytest.raises(BadRequest):
            read_command({**plain, "cached": wrong})
