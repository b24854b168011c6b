"""Messages to those who are dead, were never there, or are being restarted: a named error at once, and no harm."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from actorgrid.errors import ActorDown, ActorGridError, NoSuchActor
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.supervisor import StartChild, TerminateChild
from tests.otp.limits_servers import Ask, Numbered, ask, children_of, lives, notes, running, until, worker

PID = Ask("pid")
FOR_EVER_S = 3600.0  # a timeout that would show: these errors do not wait for it


def test_a_call_to_a_dead_ref_fails_at_once_and_a_cast_says_no(tmp_path: Path) -> None:
    with running(tmp_path, worker("asker"), worker("other")) as tree:
        dead = tree.call("root", StartChild(worker("gone"))).ref
        assert ask(tree, "asker", "forward", dead, PID), "they know each other"
        tree.call("root", TerminateChild("gone"))
        before = lives(tree)
        for to in (dead, "gone", "never_was", Ref("admin.1.999", "nobody"), Ref("", "empty")):
            with pytest.raises(NoSuchActor) as inside:
                ask(tree, "asker", "forward", to, PID, FOR_EVER_S)
            assert inside.value.hint
            with pytest.raises(NoSuchActor) as outside:
                tree.call(to, PID, FOR_EVER_S)
            assert outside.value.hint
            assert ask(tree, "asker", "cast", to, Numbered(1)) == 0
            assert tree.cast(to, Numbered(1)) is False
        assert lives(tree) == before


def test_ten_thousand_casts_to_the_dead_are_all_refused_and_hurt_nobody(tmp_path: Path) -> None:
    with running(tmp_path, worker("asker"), worker("other")) as tree:
        dead = tree.call("root", StartChild(worker("gone"))).ref
        tree.call("root", TerminateChild("gone"))
        before = lives(tree)
        assert ask(tree, "asker", "cast", dead, Numbered(1), 10_000) == 0
        assert ask(tree, "asker", "cast", "gone", Numbered(1), 10_000) == 0
        assert ask(tree, "asker", "forward", "other", PID) == before["other"][0]
        assert lives(tree) == before


def test_calls_that_wait_for_an_actor_fail_when_it_dies(tmp_path: Path) -> None:
    with running(tmp_path, worker("asker"), worker("other"), worker("victim")) as tree:
        before = lives(tree)
        os.kill(before["victim"][0], signal.SIGSTOP)  # it takes what is sent to it and cannot answer
        assert ask(tree, "asker", "cast", "victim", Ask("pid"), 100) == 100
        with pytest.raises(ActorDown):
            tree.call("asker", Ask("forward_and_kill", ("victim", PID, FOR_EVER_S, before["victim"][0])), FOR_EVER_S)
        until(lambda: lives(tree)["victim"][1] == 1, "the victim is back")
        after = lives(tree)
        assert ask(tree, "asker", "forward", "victim", PID) == after["victim"][0] != before["victim"][0]
        assert {**after, "victim": None} == {**before, "victim": None}


def test_the_old_ref_of_a_restarted_actor_stays_dead_while_its_name_works(tmp_path: Path) -> None:
    with running(tmp_path, worker("asker"), worker("victim")) as tree:
        old = ask(tree, "victim", "me")
        os.kill(lives(tree)["victim"][0], signal.SIGKILL)
        until(lambda: children_of(tree)["victim"]["restarts"] == 1, "a restart")
        until(lambda: children_of(tree)["victim"]["state"] == "up", "it is up")
        with pytest.raises(NoSuchActor):
            ask(tree, "asker", "forward", old, PID, FOR_EVER_S)
        assert ask(tree, "asker", "cast", old, Numbered(1)) == 0
        assert ask(tree, "asker", "forward", "victim", PID) == lives(tree)["victim"][0]
        assert ask(tree, "victim", "me") != old


def test_a_name_whose_start_fails_again_and_again_is_nobody_until_it_works_again(tmp_path: Path) -> None:
    with running(tmp_path, worker("asker"), worker("held", "Held"), worker("other")) as tree:
        before = lives(tree)
        (tmp_path / "broken").touch()
        os.kill(before["held"][0], signal.SIGKILL)
        until(lambda: children_of(tree)["held"]["restarts"] >= 2, "a start that failed")

        def refused() -> ActorGridError | None:
            # In the pause between two starts there is nobody; during one the call waits for its end.
            try:
                ask(tree, "asker", "forward", "held", PID, FOR_EVER_S)
            except ActorGridError as error:
                return error
            raise AssertionError("somebody answered who cannot have started")

        errors = [refused() for _ in range(20)]
        assert {type(error) for error in errors} <= {NoSuchActor, ActorDown}, errors
        nobody = until(lambda: next((e for e in [refused()] if isinstance(e, NoSuchActor)), None), "NoSuchActor")
        assert "restarted" in nobody.hint
        assert until(lambda: ask(tree, "asker", "cast", "held", Numbered(1)) == 0, "a cast that is refused")
        (tmp_path / "broken").unlink()
        until(lambda: children_of(tree)["held"]["state"] == "up", "it is up again")
        after = lives(tree)
        assert ask(tree, "asker", "forward", "held", PID) == after["held"][0] != before["held"][0]
        assert after["asker"] == before["asker"] and after["other"] == before["other"]
        assert "asker hears of held" in notes(tmp_path)


def test_a_call_to_a_name_that_starts_again_is_answered_when_the_start_has_ended(tmp_path: Path) -> None:
    with running(tmp_path, worker("asker"), worker("held", "Held")) as tree:
        (tmp_path / "slow").touch()
        old = lives(tree)["held"][0]
        os.kill(old, signal.SIGKILL)
        until(lambda: (child := children_of(tree)["held"])["state"] == "starting" and child["pid"] != old, "a start")
        assert ask(tree, "asker", "forward_later", "held", PID, str(tmp_path / "slow")) == lives(tree)["held"][0]
