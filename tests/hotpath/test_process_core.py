"""Light processes, their mail, turns and ends: one contract for the compiled kernel and its twin."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.errors import BadRequest, MailboxFull, NoSuchActor, TooManyActors
from tests.hotpath.process_stage import KINDS, MS, Stage


@pytest.fixture(params=sorted(KINDS))
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(KINDS[request.param])


# -- messages


def test_messages_come_in_order_and_only_after_the_start(stage: Stage) -> None:
    kind = stage.logger(init=lambda me, *args: stage.log.append(args))
    pid = stage.core.spawn(kind, (1, "a")).pid
    for n in range(600):
        assert stage.core.send(pid, n)
    stage.settle()
    assert stage.log == [(1, "a"), *range(600)]


def test_a_message_to_the_dead_is_refused_and_one_of_another_shard_goes_elsewhere(stage: Stage) -> None:
    process = stage.spawn(stage.logger())
    assert stage.core.remove(process, "gone")
    assert not stage.core.remove(process, "gone")
    assert not stage.core.send(process.pid, "lost")
    other = stage.kernel.Pid(stage.kernel.ShardAddress("there", 7), 3, 4)
    stage.core.send(other, "far")
    assert stage.hooks.elsewhere == [(process.pid, "lost"), (other, "far")]


def test_a_name_is_looked_up_as_it_is_sent(stage: Stage) -> None:
    stage.hooks.names["x"] = stage.spawn(stage.logger()).pid
    assert stage.core.send("x", 1)
    assert not stage.core.send("y", 2)
    stage.settle()
    assert stage.log == [1]


def test_a_number_is_used_again_and_its_former_holder_is_not_found(stage: Stage) -> None:
    first = stage.spawn(stage.logger())
    stage.core.remove(first, None)
    second = stage.spawn(stage.logger())
    assert second.pid.id == first.pid.id
    assert second.pid.generation == first.pid.generation + 1
    assert second.pid != first.pid
    assert not stage.core.send(first.pid, 1)
    copy = stage.kernel.Pid(second.pid.address, second.pid.id, second.pid.generation)
    assert copy == second.pid
    assert hash(copy) == hash(second.pid)
    assert stage.core.send(copy, 2)
    assert stage.core.find(copy) is second


@pytest.mark.parametrize(
    ("policy", "kept", "lives"), [("refuse", [0, 1], True), ("drop_oldest", [1, 2], True), ("exit", [], False)]
)
def test_a_full_mailbox_does_what_its_class_says(stage: Stage, policy: str, kept: list[int], lives: bool) -> None:
    process = stage.spawn(stage.logger(mailbox_limit=2, on_full=policy))
    taken = [stage.core.send(process.pid, n) for n in range(3)]
    assert taken == [True, True, policy == "drop_oldest"]
    stage.settle()
    assert stage.log == kept
    assert (stage.core.find(process.pid) is process) is lives
    assert stage.core.refused == 1


def test_a_call_to_a_full_mailbox_fails_at_once_and_one_dropped_for_another_too(stage: Stage) -> None:
    for policy in ("refuse", "drop_oldest"):
        process = stage.spawn(stage.kind(handle_call=lambda me, n, caller: n, mailbox_limit=1, on_full=policy))
        answers: list[Any] = []
        for n in range(2):
            stage.core.call(process.pid, n, None, answers.append)
        assert [isinstance(call.outcome[1], MailboxFull) for call in answers] == [True]
        stage.settle()
        assert answers[1].outcome == (0 if policy == "refuse" else 1, None)


# -- turns


def test_a_turn_ends_with_its_slice_so_that_others_are_served(stage: Stage) -> None:
    log = stage.log
    kind = stage.kind(
        init=lambda me, name: setattr(me, "name", name),
        handle_info=lambda me, n: log.append((me.name, n)),
        slice_messages=2,
    )
    first, second = stage.spawn(kind, "a"), stage.spawn(kind, "b")
    for n in range(3):
        stage.core.send(first.pid, n)
    stage.core.send(second.pid, 0)
    stage.settle()
    assert log == [("a", 0), ("a", 1), ("b", 0), ("a", 2)]
    assert first.reductions == 3
    assert stage.core.messages == 4


def test_work_that_is_spun_counts_against_the_slice(stage: Stage) -> None:
    log = stage.log

    def work(me: Any, n: Any) -> None:
        log.append(n)
        me.spin(100)

    kind = stage.kind(handle_info=work, slice_messages=50)
    for name in ("a", "b"):
        process = stage.core.spawn(kind)
        for n in range(2):
            stage.core.send(process.pid, f"{name}{n}")
    stage.settle()
    assert log == ["a0", "b0", "a1", "b1"]
    assert process.reductions == 202


def test_high_goes_first_and_low_gets_one_turn_of_nine(stage: Stage) -> None:
    log = stage.log
    kinds = {
        priority: stage.kind(init=lambda me, p=priority: log.append(p), priority=priority)
        for priority in ("low", "normal", "high", "max")
    }
    for kind in kinds.values():
        for _ in range(10):
            stage.core.spawn(kind)
    stage.core.spawn(kinds["low"], priority="max")
    stage.settle()
    assert log == ["max"] * 10 + ["low"] + ["high"] * 10 + ["normal"] * 8 + ["low"] + ["normal"] * 2 + ["low"] * 9


def test_run_gives_no_more_turns_than_it_was_asked_for(stage: Stage) -> None:
    for _ in range(5):
        stage.core.spawn(stage.logger())
    assert stage.core.run(3) == 3
    assert stage.core.ready_count == 2
    assert stage.core.due_in_ns() == 0
    assert stage.core.run(10) == 2
    assert stage.core.due_in_ns() == -1


def test_a_handler_cannot_run_the_shard_itself(stage: Stage) -> None:
    stage.spawn(stage.kind(init=lambda me: stage.core.run(1)))
    assert isinstance(stage.hooks.ends[0][1], BadRequest)


def test_ctrl_c_in_a_handler_comes_out_of_run_and_the_process_lives_on(stage: Stage) -> None:
    def interrupted(me: Any, message: Any) -> None:
        if message == 0:
            raise KeyboardInterrupt
        stage.log.append(message)

    process = stage.spawn(stage.kind(handle_info=interrupted))
    stage.core.send(process.pid, 0)
    with pytest.raises(KeyboardInterrupt):
        stage.core.run(10)
    stage.core.send(process.pid, 1)
    stage.settle()
    assert stage.log == [1]


# -- ends


def test_what_a_handler_raises_ends_that_process_alone(stage: Stage) -> None:
    kind = stage.kind(handle_info=lambda me, n: stage.log.append(1 // n))
    first, second = stage.spawn(kind), stage.spawn(kind)
    for n in (1, 0, 1):
        stage.core.send(first.pid, n)
        stage.core.send(second.pid, 1)
    stage.settle()
    [(pid, error)] = stage.hooks.ends
    assert pid == first.pid
    assert isinstance(error, ZeroDivisionError)
    assert error.__traceback__ is not None
    assert stage.log == [1] * 4
    assert (stage.core.living, stage.core.spawned, stage.core.ended) == (1, 2, 1)


def test_a_process_may_stop_itself_after_the_present_message(stage: Stage) -> None:
    def stopping(me: Any, message: Any) -> None:
        stage.log.append(message)
        stage.core.stop_later(me)

    process = stage.spawn(stage.kind(handle_info=stopping))
    stage.core.send(process.pid, 1)
    stage.core.send(process.pid, 2)
    stage.settle()
    assert stage.log == [1]
    assert stage.hooks.ends == [(process.pid, None)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_process_that_is_ended_within_its_own_handler_handles_nothing_more(stage: Stage, asynchronous: bool) -> None:
    def ends_itself(me: Any, message: Any) -> None:
        stage.log.append(message)
        stage.core.remove(me, "by itself")

    async def ends_itself_later(me: Any, message: Any) -> None:
        ends_itself(me, message)
        try:
            await me.receive()
        finally:
            stage.log.append("closed")

    process = stage.spawn(stage.kind(handle_info=ends_itself_later if asynchronous else ends_itself))
    stage.core.send(process.pid, 1)
    stage.core.send(process.pid, 2)
    stage.settle()
    assert stage.log == ([1, "closed"] if asynchronous else [1])
    assert process.status == "ended"


def test_the_dead_can_do_nothing(stage: Stage) -> None:
    process = stage.spawn(stage.logger())
    other = stage.spawn(stage.logger())
    stage.core.remove(process, None)
    for what, *arguments in (
        (process.send, "name", 1),
        (process.call, other.pid, 1),
        (process.receive,),
        (process.sleep, 1),
        (process.spawn, stage.logger()),
        (process.send_after, 1, other.pid, 1),
    ):
        with pytest.raises(NoSuchActor):
            what(*arguments)


def test_a_class_that_is_none_or_is_wrong_is_refused(stage: Stage) -> None:
    for kind in (int, 7, stage.kind(mailbox_limit=0), stage.kind(on_full="explode"), stage.kind(priority="urgent")):
        with pytest.raises(BadRequest):
            stage.core.spawn(kind)
    with pytest.raises(BadRequest):
        stage.core.spawn(stage.logger(), priority="urgent")
    assert stage.core.living == 0


@pytest.mark.parametrize("name", sorted(KINDS))
def test_there_are_no_more_processes_than_may_be(name: str) -> None:
    stage = Stage(KINDS[name], processes_max=2)
    first = stage.spawn(stage.logger())
    stage.spawn(stage.logger())
    with pytest.raises(TooManyActors):
        stage.core.spawn(stage.logger())
    stage.core.remove(first, None)
    stage.core.spawn(stage.logger())


# -- suspended, ordered, changed


def test_a_held_process_keeps_its_mail_and_obeys_orders(stage: Stage) -> None:
    process = stage.spawn(stage.logger())
    stage.core.hold(process)
    stage.core.send(process.pid, 1)
    stage.settle()
    assert stage.log == []
    assert process.is_held
    assert process.mailbox_length == 1
    stage.core.release(process)
    stage.core.tell(process, stage.kernel.Order(lambda me: stage.log.append("order")))
    stage.settle()
    assert stage.log == [1, "order"]


def test_a_process_may_become_of_another_class(stage: Stage) -> None:
    old, new = stage.logger(), stage.kind(handle_info=lambda me, m: stage.log.append(-m))
    process = stage.spawn(old)

    def change(me: Any) -> None:
        me.__class__ = new
        stage.core.take_class_anew(me)

    stage.core.send(process.pid, 1)
    stage.core.tell(process, stage.kernel.Order(change))
    stage.core.send(process.pid, 2)
    stage.settle()
    assert stage.log == [1, -2]


# -- timers


def test_a_timer_is_never_early_and_cancelled_ones_never_come(stage: Stage) -> None:
    process = stage.spawn(stage.logger())
    stage.now = 77_777
    timers = [process.send_after(0.010, process.pid, n) for n in range(3)]
    assert timers[1].cancel()
    assert not timers[1].cancel()
    assert 10 * MS <= stage.core.due_in_ns() <= 10.2 * MS
    stage.now = 77_777 + 10 * MS - 1
    stage.settle()
    assert stage.log == []
    stage.after(0.2)
    assert stage.log == [0, 2]
    assert not timers[0].cancel()
    for delay_s in (-1, float("nan"), "soon", 2e9, True):
        with pytest.raises(BadRequest):
            process.send_after(delay_s, process.pid, 1)


def test_dropped_timers_never_come(stage: Stage) -> None:
    process = stage.spawn(stage.logger())
    timer = process.send_after(1, process.pid, 1)
    answers: list[Any] = []
    stage.core.hold(process)
    stage.core.call(process.pid, 1, 1, answers.append)
    stage.core.drop_timers()
    stage.after(5000)
    assert stage.log == answers == []
    assert not timer.cancel()


# -- interruptions


def test_a_turn_that_lasts_is_interrupted_and_no_other(stage: Stage) -> None:
    class TooLong(BaseException):
        pass

    me_id = threading.get_ident()
    began, answers = threading.Event(), []

    def endless(me: Any, message: Any) -> None:
        began.set()
        while True:
            pass

    def watch() -> None:
        began.wait(60)
        answers.append(stage.core.interrupt(stage.core.turn_number - 1, me_id, TooLong))
        answers.append(stage.core.interrupt(stage.core.turn_number, me_id, TooLong))

    process, other = stage.spawn(stage.kind(handle_info=endless)), stage.spawn(stage.logger())
    watcher = threading.Thread(target=watch)
    watcher.start()
    stage.core.send(process.pid, 1)
    stage.core.send(other.pid, 2)
    stage.settle()
    watcher.join()
    assert answers == [False, True]
    [(pid, error)] = stage.hooks.ends
    assert (pid, type(error)) == (process.pid, TooLong)
    assert stage.log == [2]
    assert not stage.core.interrupt(stage.core.turn_number, me_id, TooLong)


TRACED_AFTERWARDS = """
import faulthandler, sys, threading
from tests.hotpath.process_stage import KINDS, Stage

faulthandler.dump_traceback_later(30, exit=True)
stage = Stage(KINDS[sys.argv[1]])
me_id = threading.get_ident()

class TooLong(BaseException):
    pass

def handle(me, message):
    watcher = threading.Thread(target=lambda: stage.core.interrupt(stage.core.turn_number, me_id, TooLong))
    watcher.start()
    watcher.join()

for _ in range(2):  # it comes as the turn ends, or after it
    pid = stage.spawn(stage.kind(handle_info=handle)).pid
    stage.core.send(pid, 1)
    stage.settle()

def traced():
    return 7

sys.setprofile(lambda *_: None)
print(traced())
"""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_process_can_be_traced_after_an_interruption(kind: str) -> None:
    ran = subprocess.run([sys.executable, "-c", TRACED_AFTERWARDS, kind], capture_output=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, b"7\n"), ran.stderr.decode()


# -- memory


def leftovers(make: Callable[[], Any]) -> Any:
    found = weakref.ref(make())
    for _ in range(2):  # the core first, then what stood in its run queue
        gc.collect()
    return found()


@pytest.mark.parametrize("how", ["ended", "crashed", "dropped"])
def test_a_process_that_knows_itself_is_collected_when_it_is_over(stage: Stage, how: str) -> None:
    def make() -> Any:
        own = Stage(stage.kernel)

        def handle(me: Any, message: Any) -> None:
            raise ValueError

        kind = own.kind(handle_info=handle)
        process = own.spawn(kind)
        process.me, process.mail = process, [process]
        own.core.send(process.pid, process)
        if how == "crashed":
            own.settle()
            own.hooks.ends.clear()
        elif how == "ended":
            own.core.remove(process, None)
        else:
            del process.me, process.mail
            own.core.remove(own.spawn(kind), None)
            own.hooks.core = None
        return process

    assert leftovers(make) is None


def test_nothing_is_left_of_a_hundred_generations(stage: Stage) -> None:
    token = object()
    before = sys.getrefcount(token)
    kind = stage.kind(
        init=lambda me, token: setattr(me, "token", token),
        handle_call=lambda me, request, caller: request,
        handle_info=lambda me, message: None,
    )

    async def ask(me: Any, to: Any, token: Any) -> None:
        await me.call(to, token)
        await me.receive(timeout_s=0.001)

    for _ in range(100):
        server = stage.spawn(kind, token)
        stage.spawn(ask, server.pid, token)
        for _ in range(20):
            stage.core.send(server.pid, token)
        server.send_after(0.001, server.pid, token)
        stage.after(2)
        stage.core.send(server.pid, token)
        stage.core.remove(server, None)
    del server
    stage.hooks.ends.clear()
    stage.hooks.elsewhere.clear()
    stage.settle()
    gc.collect()
    assert sys.getrefcount(token) == before
    assert stage.core.living == stage.core.timer_count == 0


def test_who_outlives_a_shard_that_was_dropped_can_do_no_harm(stage: Stage) -> None:
    kept: list[Any] = []

    later = stage.kernel.NO_REPLY

    async def waits(me: Any) -> None:
        kept.append(me.receive())
        await me.sleep(5)

    def keep(me: Any, request: Any, caller: Any) -> Any:
        kept.append(caller)
        return later

    def drop(own: Stage) -> None:
        kind = own.kind(handle_call=keep, handle_info=lambda me, message: None)
        first, second = own.spawn(kind), own.spawn(waits)
        for n in range(200):
            own.core.spawn(kind)
            own.core.send(first.pid, n)
        own.core.call(first.pid, 1, 5.0, kept.append)
        own.settle()
        own.core.hold(first)
        own.core.call(first.pid, 1, 5.0, kept.append)
        kept.extend([first, second, first.pid, second.pid, first.send_after(1, first.pid, 1)])
        second.me = [second]

    drop(Stage(stage.kernel))
    gc.collect()
    other = stage.spawn(stage.logger())
    for each in kept:
        if isinstance(each, stage.kernel.LightProcess):
            for what, *arguments in ((each.send, other.pid, 1), (each.send_after, 1, other.pid, 1), (each.sleep, 1)):
                try:
                    what(*arguments)  # the twin's core lives as long as its processes
                except NoSuchActor:
                    assert stage.kernel is not KINDS["reference"]
        elif hasattr(each, "cancel"):
            each.cancel()
        elif hasattr(each, "reply"):
            each.reply(1)
        elif hasattr(each, "generation"):
            stage.core.send(each, 1)
    stage.core.send(other.pid, 2)
    stage.settle()
    assert stage.log[-1] == 2
