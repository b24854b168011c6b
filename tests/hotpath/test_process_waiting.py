"""What light processes wait for, calls and messages: one contract for the compiled kernel and its twin."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actorgrid.errors import ActorDown, BadRequest, CallTimeout, NoSuchActor, NotFound, ReceiveTimeout
from tests.hotpath.process_stage import KINDS, Stage


@pytest.fixture(params=sorted(KINDS))
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(KINDS[request.param])


# -- calls


def test_a_call_is_answered_by_what_the_handler_gives_or_raises(stage: Stage) -> None:
    def answer(me: Any, request: Any, caller: Any) -> Any:
        if request is None:
            raise NotFound("none")
        return request * 2

    process = stage.spawn(stage.kind(handle_call=answer))
    assert stage.ask(process.pid, 21) == 42
    with pytest.raises(NotFound):
        stage.ask(process.pid, None)  # an error of ours is an answer: the process lives
    assert stage.ask(process.pid, (1, 2)) == (1, 2, 1, 2)
    with pytest.raises(ActorDown):
        stage.ask(process.pid, object())
    assert isinstance(stage.hooks.ends[0][1], TypeError)
    with pytest.raises(NoSuchActor):
        stage.ask(process.pid, 1)


@pytest.mark.parametrize("value", [None, 1, (1, 2), ValueError("a value"), StopIteration(3), [None]])
def test_a_coroutine_awaits_an_answer_of_any_kind(stage: Stage, value: Any) -> None:
    server = stage.spawn(stage.kind(handle_call=lambda me, request, caller: value))

    async def ask(me: Any) -> None:
        stage.log.append(await me.call(server.pid, 1))
        stage.log.append(await me.receive())

    process = stage.spawn(ask)
    stage.core.send(process.pid, value)
    stage.settle()
    assert len(stage.log) == 2
    assert all(found is value for found in stage.log)
    assert stage.hooks.ends == [(process.pid, None)]


def test_an_answer_may_be_put_off_and_be_given_by_another(stage: Stage) -> None:
    def later(me: Any, request: Any, caller: Any) -> Any:
        me.caller = caller
        return stage.kernel.NO_REPLY

    process = stage.spawn(stage.kind(handle_call=later))
    answers: list[Any] = []
    stage.core.call(process.pid, 1, 5.0, answers.append)
    stage.settle()
    assert answers == []
    assert process.caller.request == 1
    assert process.caller.reply("late")
    assert not process.caller.reply("again")
    assert answers[0].outcome == ("late", None)


def test_calls_of_a_process_that_ends_fail_wherever_they_are(stage: Stage) -> None:
    async def answer(me: Any, request: Any, caller: Any) -> Any:
        if request == "put off":
            return stage.kernel.NO_REPLY
        await me.receive(str)

    process = stage.spawn(stage.kind(handle_call=answer))
    answers: list[Any] = []
    for request in ("put off", "begun", "waiting"):
        stage.core.call(process.pid, request, None, answers.append)
    stage.settle()
    assert answers == []
    stage.core.remove(process, "killed")
    assert [str(call.outcome[1]) for call in answers] == ["it ended: killed"] * 3
    assert sorted(call.request for call in answers) == ["begun", "put off", "waiting"]


def test_a_call_times_out_and_its_late_answer_goes_nowhere(stage: Stage) -> None:
    held: list[Any] = []

    def keep(me: Any, request: Any, caller: Any) -> Any:
        held.append(caller)
        return stage.kernel.NO_REPLY

    server = stage.spawn(stage.kind(handle_call=keep))

    async def ask(me: Any) -> None:
        for _ in range(2):
            try:
                await me.call(server.pid, 1, timeout_s=0.5)
            except CallTimeout as error:
                stage.log.append(error.message)

    stage.spawn(ask)
    stage.after(499)
    assert stage.log == []
    stage.after(2)
    assert not held[0].reply("late")
    assert len(stage.log) == 1
    stage.after(501)
    assert len(stage.log) == 2
    assert stage.core.timer_count == 0


def test_a_call_that_timed_out_in_the_mailbox_is_not_handled(stage: Stage) -> None:
    process = stage.spawn(stage.kind(handle_call=lambda me, request, caller: stage.log.append(request)))
    stage.core.hold(process)
    answers: list[Any] = []
    stage.core.call(process.pid, "old", 0.5, answers.append)
    stage.after(600)
    assert isinstance(answers[0].outcome[1], CallTimeout)
    stage.core.call(process.pid, "new", 0.5, answers.append)
    stage.core.release(process)
    stage.settle()
    assert stage.log == ["new"]


def test_a_request_with_a_label_is_answered_by_a_message(stage: Stage) -> None:
    server = stage.spawn(stage.kind(handle_call=lambda me, n, caller: 10 // n))
    asker = stage.spawn(stage.logger())
    asker.send_request(server.pid, 5, label="five")
    stage.settle()
    asker.send_request(server.pid, 0, label="none")
    stage.settle()
    (label, outcome), (other, (_, error)) = stage.log
    assert (label, outcome) == (("five",), (2, None))
    assert other == ("none",)
    assert isinstance(error, ActorDown)


def test_while_a_handler_awaits_nothing_else_is_handled(stage: Stage) -> None:
    async def slow(me: Any, request: Any, caller: Any) -> Any:
        stage.log.append(f"begin {request}")
        await me.sleep(1)
        stage.log.append(f"end {request}")
        return request

    process = stage.spawn(stage.kind(handle_call=slow, handle_info=lambda me, m: stage.log.append(m)))
    answers: list[Any] = []
    stage.core.call(process.pid, 1, None, answers.append)
    stage.core.send(process.pid, "info")
    stage.core.call(process.pid, 2, None, answers.append)
    stage.settle()
    stage.after(999)
    assert stage.log == ["begin 1"]
    stage.after(1)
    assert stage.log == ["begin 1", "end 1", "info", "begin 2"]
    stage.after(1000)
    assert [call.outcome for call in answers] == [(1, None), (2, None)]


# -- coroutines


def test_a_receive_takes_what_it_wants_and_leaves_the_rest_in_order(stage: Stage) -> None:
    async def picky(me: Any) -> None:
        for wanted in (str, lambda m: m == 3, (bytes, float), None, None):
            stage.log.append(await me.receive(wanted))

    process = stage.spawn(picky)
    for message in (1, b"b", 2, 3, "a"):
        stage.core.send(process.pid, message)
        stage.settle()
    assert stage.log == ["a", 3, b"b", 1, 2]
    assert stage.hooks.ends == [(process.pid, None)]


def test_a_receive_gives_up_in_time(stage: Stage) -> None:
    async def patient(me: Any) -> None:
        for timeout_s in (0, 0.25):
            try:
                await me.receive(str, timeout_s)
            except ReceiveTimeout:
                stage.log.append(timeout_s)
        stage.log.append(await me.receive(str, 0.25))
        stage.log.append(await me.receive(timeout_s=0))

    process = stage.spawn(patient)
    assert stage.log == [0]
    stage.core.send(process.pid, 5)
    stage.after(249)
    assert stage.log == [0]
    stage.after(1)
    assert stage.log == [0, 0.25]
    stage.core.send(process.pid, "in time")
    stage.settle()
    assert stage.log == [0, 0.25, "in time", 5]
    assert stage.core.timer_count == 0


def test_a_coroutine_with_much_mail_gives_way_to_others(stage: Stage) -> None:
    async def greedy(me: Any, name: str) -> None:
        while True:
            stage.log.append((name, await me.receive()))

    stage.hooks.function_process.slice_messages = 2
    pids = [stage.core.spawn(greedy, (name,)).pid for name in "ab"]
    for pid in pids:
        for n in range(3):
            stage.core.send(pid, n)
    stage.settle()
    assert stage.log == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("b", 2)]


def test_an_error_of_a_predicate_is_raised_where_it_is_awaited(stage: Stage) -> None:
    async def broken(me: Any) -> None:
        try:
            await me.receive(lambda message: message.nothing)
        except AttributeError:
            stage.log.append(await me.receive())

    process = stage.spawn(broken)
    stage.core.send(process.pid, 1)
    stage.settle()
    assert stage.log == [1]


def test_a_coroutine_that_is_ended_runs_its_finally_blocks(stage: Stage) -> None:
    async def tidy(me: Any) -> None:
        try:
            await me.receive()
        finally:
            stage.log.append("tidied")
            raise ValueError("in vain")

    process = stage.spawn(tidy)
    stage.core.remove(process, "killed")
    assert stage.log == ["tidied"]
    assert [str(error) for error in stage.hooks.closing] == ["in vain"]


def test_who_wants_to_know_hears_when_a_start_has_ended(stage: Stage) -> None:
    async def slow_init(me: Any) -> None:
        await me.sleep(1)

    slow = stage.spawn(stage.kind(init=slow_init), tells_start=True)
    quick = stage.spawn(stage.kind(init=lambda me: None), tells_start=True)
    stage.spawn(stage.kind(init=lambda me: None))
    assert stage.hooks.began == [quick.pid]
    stage.core.send(slow.pid, "waits")
    stage.after(1000)
    assert stage.hooks.began == [quick.pid, slow.pid]
    assert isinstance(stage.hooks.ends[0][1], TypeError)  # it has no handler for "waits"

    async def coroutine(me: Any) -> None:
        await me.sleep(1)
        await me.receive()

    process = stage.core.spawn(coroutine, tells_start=True)
    assert not process.has_started
    stage.settle()
    assert process.has_started
    assert stage.hooks.began[-1] == process.pid

    async def short(me: Any) -> None:
        pass

    pid = stage.spawn(short, tells_start=True).pid
    assert stage.hooks.began[-1] == pid
    assert stage.hooks.ends[-1] == (pid, None)


def test_what_is_awaited_of_others_is_told_and_woken(stage: Stage) -> None:
    loop = asyncio.new_event_loop()
    try:
        future = loop.create_future()

        async def bridge(me: Any) -> None:
            stage.log.append(await future)

        process = stage.spawn(bridge)
        assert stage.hooks.foreign == [(process, future)]
        future.set_result(7)
        stage.core.wake(process, object())
        stage.settle()
        assert stage.log == []
        stage.core.wake(process, future)
        stage.settle()
        assert stage.log == [7]
    finally:
        loop.close()


# -- a coroutine in the place of another


def test_a_call_that_a_coroutine_has_taken_fails_when_it_ends(stage: Stage) -> None:
    async def taker(me: Any) -> None:
        call = await me.receive(stage.kernel.ProcessCall)
        if call.request == "answer":
            call.reply("yes")
            call = await me.receive()
        raise ValueError(call.request)

    assert stage.ask(stage.spawn(taker).pid, "answer", None) == "yes"
    with pytest.raises(ActorDown, match="it ended: oh"):
        stage.ask(stage.spawn(taker).pid, "oh", None)


def test_another_coroutine_goes_on_where_one_waits_for_a_message(stage: Stage) -> None:
    async def first(me: Any) -> None:
        try:
            while True:
                stage.log.append(await me.receive(str, 1))
        finally:
            stage.log.append("left")

    async def second(me: Any) -> None:
        while True:
            stage.log.append(await me.receive())

    process = stage.spawn(first)
    stage.core.send(process.pid, 7)
    stage.core.send(process.pid, "a")
    stage.core.tell(process, stage.kernel.Order(lambda me: stage.core.go_on_with(me, second(me))))
    stage.core.send(process.pid, "b")
    stage.settle()
    stage.after(5_000)
    assert stage.log == ["a", "left", 7, "b"]
    assert stage.hooks.ends == [] and stage.core.timer_count == 0
    with pytest.raises(BadRequest):
        stage.core.go_on_with(process, None)


@pytest.mark.parametrize("how", ["raises", "ends", "awaits"])
def test_a_coroutine_that_does_not_leave_well_holds_its_successor_up_no_longer(stage: Stage, how: str) -> None:
    async def first(me: Any) -> None:
        try:
            await me.receive(None, 0 if how == "raises" else None)
        finally:
            if how == "raises":
                raise KeyError("on the way out")
            if how == "ends":
                stage.core.remove(me, "itself")
            else:
                await me.receive()

    async def second(me: Any) -> None:
        stage.log.append(await me.receive())

    process = stage.core.spawn(first)
    stage.core.tell(process, stage.kernel.Order(lambda me: stage.core.go_on_with(me, second(me))))
    stage.settle()
    stage.core.send(process.pid, "told")
    stage.settle()
    assert stage.log == ([] if how == "ends" else ["told"])
    assert len(stage.hooks.closing) == (how != "ends")
