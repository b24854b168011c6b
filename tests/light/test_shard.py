"""A shard and its processes as a program uses them."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from actorgrid.errors import ActorDown, BadRequest, CallTimeout, NoSuchActor, NotSupported, StartFailed, TooManyActors
from actorgrid.supervisors.process import (
    NO_REPLY,
    CallReply,
    GenServer,
    Pid,
    Process,
    ProcessCall,
    Shard,
    current_process,
    handles,
    shard_figures,
    top,
)
from tests.light.conftest import StillShard, Witness


@dataclass(frozen=True)
class Add:
    amount: int


@dataclass(frozen=True)
class Get:
    pass


class Account(GenServer):
    """Handlers by type."""

    def init(self, start: int = 0) -> None:
        self.value = start

    @handles(Add)
    def add(self, message: Add) -> int:
        self.value += message.amount
        return self.value

    @handles(Get)
    async def get(self, message: Get, caller: ProcessCall) -> tuple[int, Pid | None]:
        await self.sleep(0.1)
        return self.value, caller.pid


def test_handlers_are_found_by_the_type_of_a_message_however_it_comes(shard: StillShard) -> None:
    pid = shard.start(Account, 5)
    assert shard.call(pid, Add(1)) == 6
    shard.cast(pid, Add(1))
    shard.send(pid, Add(1))
    answers: list[Any] = []
    shard.call_soon(pid, Get(), None, answers.append)
    shard.after(0.1)
    assert answers[0].outcome == ((8, None), None)
    with pytest.raises(NotSupported, match="takes no str"):
        shard.call(pid, "unknown")
    assert shard.cast(pid, "unknown")
    assert shard.send(pid, "unknown")
    shard.run_until_idle()
    assert shard.info(pid) is not None


def test_a_handler_that_hides_a_method_of_processes_is_refused() -> None:
    with pytest.raises(BadRequest, match="hides"):

        class Wrong(GenServer):
            @handles(Add)
            def stop(self, message: Any) -> None:  # type: ignore[override]
                pass


def test_a_start_waits_for_init_and_raises_what_that_raised(shard: StillShard) -> None:
    class Fails(GenServer):
        def init(self, error: BaseException) -> None:
            raise error

    class Ends(GenServer):
        def init(self) -> None:
            self.stop()

    class Sleeps(GenServer):
        async def init(self) -> None:
            await self.sleep(1000)

    with pytest.raises(NotSupported, match="not today"):
        shard.start(Fails, NotSupported("not today"))
    with pytest.raises(StartFailed, match="KeyError") as failed:
        shard.start(Fails, KeyError("x"))
    assert "in init" in failed.value.found
    with pytest.raises(StartFailed):
        shard.start(Sleeps, timeout_s=0.5)
    assert shard.start(Ends) is not None
    with pytest.raises(BadRequest):
        shard.start(7)
    with pytest.raises(BadRequest, match="takes no arguments"):
        shard.start(GenServer, 1)
    assert shard.core.living == 0


def test_a_process_starts_others_and_hears_how_that_went(shard: StillShard) -> None:
    log: list[Any] = []

    class Fails(GenServer):
        def init(self) -> None:
            raise ValueError("no")

    class Slow(GenServer):
        async def init(self) -> None:
            await self.sleep(2)

    async def parent(me: Process) -> None:
        log.append(await me.start(Account, 3))
        log.append(await me.call(log[0], Add(1)))
        for kind, timeout_s in ((Fails, 60.0), (Slow, 1.0)):
            try:
                await me.start(kind, timeout_s=timeout_s)
            except StartFailed as error:
                log.append(error.message)
        log.append(await me.start(Slow))
        me.exit(me.pid, "shutdown")

    shard.spawn(parent)
    shard.after(10)
    assert log[1] == 4
    assert log[2].startswith("Fails did not start: error: ValueError: no")
    assert log[3] == "Slow did not start in 1 s"
    assert isinstance(log[4], Pid)
    assert shard.core.living == 0  # those it started were linked to it
    assert shard.core.timer_count == 0


def test_a_process_knows_who_made_it_and_which_one_runs(shard: StillShard) -> None:
    seen: list[Any] = []

    def deep_down() -> None:
        process = current_process()
        assert process is not None
        process.dictionary["seen"] = process.dictionary.get("seen", 0) + 1
        seen.append((process.pid, process.dictionary["seen"]))

    async def child(me: Process) -> None:
        deep_down()
        deep_down()
        seen.append(me.parent)

    class Parent(GenServer):
        def init(self) -> None:
            seen.append(self.spawn(child))

    parent = shard.spawn(Parent)
    shard.run_until_idle()
    assert seen == [seen[0], (seen[0], 1), (seen[0], 2), parent]
    assert current_process() is None


def test_a_call_is_received_like_any_message_by_a_coroutine(shard: StillShard) -> None:
    async def echo(me: Process) -> None:
        while True:
            call = await me.receive(ProcessCall)
            call.reply(call.request)

    pid = shard.spawn(echo)
    assert [shard.call(pid, n) for n in range(3)] == [0, 1, 2]


def test_an_answer_to_a_request_is_a_message(shard: StillShard) -> None:
    server, asker = shard.spawn(Account), shard.spawn(Witness)
    shard.call(asker, ("send_request", server, Add(2), "two"))
    shard.call(asker, ("send_request", server, "what", "none"))
    first, second = shard.call(asker, ("told",))
    assert first == CallReply("two", 2)
    assert first.result() == 2
    with pytest.raises(NotSupported):
        second.result()


def test_calls_fail_by_name_of_what_went_wrong(shard: StillShard) -> None:
    class Silent(GenServer):
        def handle_call(self, request: Any, caller: Any) -> Any:
            return NO_REPLY

    pid = shard.start(Silent)
    shard.core.call_after(1, lambda: shard.stop(pid, "killed"))
    answers: list[Any] = []
    for timeout_s in (0.5, 2.0):
        shard.call_soon(pid, 1, timeout_s, answers.append)
    shard.after(3)
    assert [type(call.outcome[1]) for call in answers] == [CallTimeout, ActorDown]
    with pytest.raises(NoSuchActor):
        shard.call(pid, 1)
    with pytest.raises(BadRequest):
        shard.call(shard.spawn(Silent), 1, timeout_s=-1)


def test_names_options_and_priority_of_a_new_process(shard: StillShard) -> None:
    pid = shard.spawn_opt(Account, (1,), name="it", priority="low", label="an account")
    shard.run_until_idle()
    [info] = top(shard)
    assert (info.pid, info.kind, info.label, info.names, info.status) == (
        pid,
        "Account",
        "an account",
        ("it",),
        "waiting",
    )
    with pytest.raises(BadRequest):
        shard.spawn_opt(Account, priority="urgent")
    assert shard.core.living == 1


def test_the_busiest_are_shown_first_and_figures_add_up(shard: StillShard) -> None:
    pids = [shard.spawn(Account) for _ in range(3)]
    for n, pid in enumerate(pids):
        for _ in range(n):
            shard.send(pid, Add(1))
    shard.run_until_idle()
    shard.core.hold(shard.core.find(pids[0]))  # type: ignore[arg-type]
    shard.send(pids[0], 1)
    assert [info.pid for info in top(shard)][:2] == [pids[2], pids[1]]
    [info] = top(shard, "mailbox", 1)
    assert (info.pid, info.mailbox, info.status) == (pids[0], 1, "waiting, suspended")
    assert top(shard, "memory", 1)[0].memory_bytes > 100
    with pytest.raises(BadRequest):
        top(shard, "beauty")  # type: ignore[arg-type]
    figures = shard_figures(shard)
    assert (figures["processes"], figures["process_messages_total"]) == (3, 3)


def test_a_full_shard_refuses_another_process() -> None:
    with StillShard(processes_max=1) as shard:
        shard.spawn(Account)
        with pytest.raises(TooManyActors):
            shard.spawn(Account)


def test_closing_ends_all_in_order_and_again_is_harmless() -> None:
    shard = StillShard()
    log: list[Any] = []

    class Last(Witness):
        def terminate(self, reason: Any) -> None:
            log.append((self.pid.id, reason.kind))

    pids = [shard.spawn(Last) for _ in range(3)]
    shard.run_until_idle()
    shard.close()
    shard.close()
    assert log == [(2, "shutdown"), (1, "shutdown"), (0, "shutdown")]
    for ask in (lambda: shard.spawn(Last), lambda: shard.send(pids[0], 1), lambda: shard.call(pids[0], 1)):
        with pytest.raises(NoSuchActor):
            ask()
    assert not shard.post(pids[0], 1)


def test_crashes_are_logged_with_their_traceback_and_a_storm_is_counted(
    shard: StillShard, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "actorgrid.process"):
        for _ in range(500):
            shard.cast(shard.spawn(Witness), ("crash",))
        shard.run_until_idle()
        assert len(caplog.records) == 10
        assert "in crash" in caplog.text
        shard.after(1)
        shard.cast(shard.spawn(Witness), ("crash",))
        shard.run_until_idle()
    assert "490 more processes crashed within that second" in caplog.text
    assert shard.crash_log.crashes == 501


def test_what_a_crashed_process_held_is_let_go_of(shard: StillShard) -> None:
    import gc
    import weakref

    class Large:
        pass

    found: list[Any] = []

    class Fails(GenServer):
        def handle_info(self, message: Any) -> None:
            large = Large()
            found.append(weakref.ref(large))
            raise ValueError(message)

    for _ in range(300):
        shard.send(shard.spawn(Fails), 1)
    shard.run_until_idle()
    gc.collect()
    assert [each for each in found if each() is not None] == []


# -- the real clock, other threads


def test_other_threads_post_and_ask() -> None:
    with Shard() as shard:
        pid = shard.start(Account)
        results: list[Any] = []

        def work() -> None:
            for _ in range(100):
                assert shard.post(pid, Add(1))
            results.append(shard.post_call(pid, Add(0)).result(60))
            refused = shard.post_call(pid, "unknown")
            results.append(type(refused.exception(60)))
            shard.wake()

        thread = threading.Thread(target=work)
        thread.start()
        assert shard.wait_until(lambda: len(results) == 2, 60)
        thread.join()
        assert results == [100, NotSupported]
    assert isinstance(shard.post_call(pid, 1).exception(), NoSuchActor)


def test_a_timer_comes_on_the_real_clock_and_not_early() -> None:
    from time import monotonic

    with Shard() as shard:
        pid = shard.start(Witness)
        began = monotonic()
        shard.call(pid, ("send_after", 0.05, pid, "now"))
        assert shard.wait_until(lambda: shard.info(pid).log != [], 60)  # type: ignore[union-attr]
        assert monotonic() - began >= 0.05


def test_a_handler_that_runs_long_is_reported_with_its_stack_and_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    class Endless(GenServer):
        def handle_info(self, message: Any) -> None:
            while True:
                pass

    told: list[Any] = []
    with Shard(report_after_s=0.05, interrupt_after_s=0.2) as shard, caplog.at_level(logging.WARNING):
        shard.overruns.on_overrun = told.append
        pid, other, watcher = shard.start(Endless), shard.start(Account), shard.start(Witness)
        shard.call(watcher, ("monitor", pid))
        shard.send(pid, 1)
        assert shard.call(other, Add(1), timeout_s=60) == 1
        [down] = shard.call(watcher, ("told",))
    assert down.reason.kind == "hung"
    assert "in handle_info" in down.reason.traceback
    assert [each.interrupted for each in told] == [False, True]
    assert all(each.pid == pid and "in handle_info" in each.stack for each in told)
    assert "has run for" in caplog.text
