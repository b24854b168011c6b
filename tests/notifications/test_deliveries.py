"""When what is sent: lines by target, pauses that grow, ends; on virtual time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.notifications.deliveries import ASKED_MAX_S, FIRST_S, LONGEST_S, Deliveries, Delivery, SendResult
from actorgrid.actors.notifications.outgoing import OutgoingMessage

GIVE_UP_S = 3_600.0


def delivery(number: int, target: str = "ops", at: float = 0.0) -> Delivery:
    return Delivery(f"d{number}", target, OutgoingMessage(f"d{number}", "test", at, "text"))


def lines(waiting_max: int = 10) -> Deliveries:
    return Deliveries(lambda: 0.0, waiting_max)


def test_one_at_a_time_goes_to_each_target_in_turn() -> None:
    line = lines()
    for number, target in enumerate(("ops", "ops", "ann")):
        assert line.put(delivery(number, target))
    assert [each.delivery_id for each in line.due(0.0, 4)] == ["d0", "d2"]
    assert line.due(0.0, 4) == [] and line.next_at() is None
    (done,) = line.done(delivery(0), SendResult(), 0.0, GIVE_UP_S)
    assert (done.failure, done.tries) == ("", 1)
    assert [each.delivery_id for each in line.due(0.0, 4)] == ["d1"]


def test_pauses_grow_to_five_minutes_and_start_anew_when_something_arrives() -> None:
    line = lines()
    line.put(delivery(0))
    now, pauses = 0.0, []
    for _ in range(12):
        assert line.due(now, 1)
        assert line.done(delivery(0), SendResult("no answer"), now, 1e9) == []
        at = line.next_at()
        assert at is not None and line.due(at - 0.001, 1) == []
        pauses.append(at - now)
        now = at
    assert pauses[:4] == [FIRST_S, 2.0, 4.0, 8.0] and pauses[-1] == LONGEST_S
    line.due(now, 1)
    line.done(delivery(0), SendResult(), now, 1e9)
    line.put(delivery(1))
    line.due(now, 1)
    line.done(delivery(1), SendResult("no answer"), now, 1e9)
    assert line.next_at() == now + FIRST_S
    state = line.state_of("d1")
    assert state is not None and (state.tries, state.last_failure) == (1, "no answer")


def test_the_receiver_may_ask_for_a_longer_pause() -> None:
    line = lines()
    line.put(delivery(0))
    line.due(0.0, 1)
    line.done(delivery(0), SendResult("busy", wait_s=60.0), 0.0, GIVE_UP_S)
    assert line.next_at() == 60.0
    line.due(60.0, 1)
    line.done(delivery(0), SendResult("busy", wait_s=1e9), 60.0, 1e9)
    assert line.next_at() == 60.0 + 3_600.0


def test_a_target_that_does_not_answer_holds_no_other_back_and_no_other_message_of_its_own() -> None:
    line = lines()
    for number, target in enumerate(("down", "down", "up")):
        line.put(delivery(number, target))
    assert {each.delivery_id for each in line.due(0.0, 4)} == {"d0", "d2"}
    line.done(delivery(0, "down"), SendResult("500"), 0.0, GIVE_UP_S)
    line.done(delivery(2, "up"), SendResult(), 0.0, GIVE_UP_S)
    line.put(delivery(3, "up"))
    assert [each.delivery_id for each in line.due(0.0, 4)] == ["d3"]
    assert [each.delivery_id for each in line.due(FIRST_S, 4)] == ["d1"], "the other is tried next"


def test_what_is_refused_for_good_or_too_old_is_given_up() -> None:
    line = lines()
    for number, at in enumerate((0.0, 0.0, 0.0, 9.0)):
        line.put(delivery(number, at=at))
    line.due(0.0, 1)
    (done,) = line.done(delivery(0), SendResult("410 Gone", final=True), 0.0, GIVE_UP_S)
    assert done.failure == "410 Gone"
    line.due(0.0, 1)
    ended = line.done(delivery(1), SendResult("no answer"), GIVE_UP_S, GIVE_UP_S)
    assert [(each.delivery.delivery_id, each.failure, each.tries) for each in ended] == [
        ("d2", "no answer", 0),
        ("d1", "no answer", 1),
    ]
    assert line.ids() == ["d3"]


def test_beyond_the_bound_nothing_is_taken_in_and_nothing_twice() -> None:
    line = lines(waiting_max=2)
    assert [line.put(delivery(number)) for number in (0, 0, 1, 2)] == [True, True, True, False]
    assert line.ids() == ["d0", "d1"]


def test_what_is_dropped_while_it_is_sent_is_over_and_its_line_goes_on() -> None:
    line = lines()
    line.put(delivery(0))
    line.due(0.0, 1)
    line.drop("d0")
    line.put(delivery(1))
    assert line.due(0.0, 1) == [], "what is under way is not sent beside another"
    assert line.done(delivery(0), SendResult(), 0.0, GIVE_UP_S) == []
    assert [each.delivery_id for each in line.due(0.0, 1)] == ["d1"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "again", "never"])), max_size=60), st.floats(0, 1)
)
def test_every_message_ends_once_whatever_tries_come_to(plan: list[tuple[str, str]], chance: float) -> None:
    line = Deliveries(lambda: chance, 100)
    for number, (target, _) in enumerate(plan):
        line.put(delivery(number, target))
    ended: list[str] = []
    now = 0.0
    results = {f"d{number}": word for number, (_, word) in enumerate(plan)}
    while (at := line.next_at()) is not None:
        now = max(now, at)
        found = line.due(now, 2)
        assert found and len({each.target for each in found}) == len(found)
        for each in found:
            word = results[each.delivery_id]
            over = line.done(each, SendResult(word, final=word == "never"), now, 600.0)
            ended += [each.delivery.delivery_id for each in over]
    assert sorted(ended) == sorted(results) and len(line) == 0 and now <= 600.0 + LONGEST_S


def test_targets_that_do_not_answer_keep_those_that_do_from_nothing() -> None:
    """However many: somebody who names a hundred dead ones must not have all four threads for them."""
    line = lines(200)
    for number in range(100):
        line.put(delivery(number, f"dead{number}", at=1.0))
    now = 0.0
    tried: list[str] = []
    for _ in range(50):  # each takes ten seconds, so that the first ones are due again before the last were tried
        for each in line.due(now, 4):
            tried.append(each.target)
            line.done(each, SendResult("no answer"), now + 10.0, 1e9)
        now += 10.0
    assert set(tried) == {f"dead{number}" for number in range(100)}
    line.put(delivery(500, "ops", at=now))
    assert line.due(now + LONGEST_S, 1)[0].target == "ops"


def test_a_clock_that_is_set_back_holds_nothing_up_for_longer_than_a_pause_may_be() -> None:
    line = lines()
    line.put(delivery(0, at=1e9))
    line.due(1e9, 1)
    line.done(delivery(0, at=1e9), SendResult("no answer"), 1e9, GIVE_UP_S)
    assert line.due(5_000.0, 1) == []
    at = line.next_at()
    assert at is not None and at <= 5_000.0 + ASKED_MAX_S and line.due(at, 1)
