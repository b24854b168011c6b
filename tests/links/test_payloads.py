from __future__ import annotations

from actorgrid.actors.links.payloads import LOOKS_MAX, Payloads


def job(number: int) -> dict[str, str | None]:
    return {"payload_digest": f"p{number}", "stdin_digest": None if number % 2 else f"s{number}"}


def test_a_host_that_becomes_a_voter_is_to_look_for_all_live_payloads_once() -> None:
    payloads = Payloads()
    assert not payloads.role(False)
    assert payloads.next_round() == []
    assert payloads.role(True)
    payloads.named(["p1", "p2", "s2", "p1"])
    assert payloads.next_round() == ["p1", "p2", "s2"]
    assert not payloads.role(True)
    assert payloads.next_round() == []


def test_what_is_accepted_later_is_looked_at_and_what_failed_again() -> None:
    payloads = Payloads()
    payloads.role(True)
    payloads.job(job(3))
    payloads.job(job(3))
    assert payloads.next_round() == ["p3"]
    payloads.again("p3")
    payloads.job(job(4))
    assert payloads.next_round() == ["p3", "p4", "s4"]


def test_a_host_that_votes_no_more_keeps_nothing_for_others() -> None:
    payloads = Payloads()
    payloads.role(True)
    payloads.job(job(1))
    payloads.role(False)
    assert (len(payloads), payloads.next_round()) == (0, [])
    payloads.role(True)
    payloads.named(["p1"])
    payloads.restart()
    assert payloads.next_round() == []
    assert payloads.role(True)
    payloads.named(["p5"])
    assert payloads.next_round() == ["p5"]


def test_a_round_is_bounded_and_the_next_goes_on() -> None:
    payloads = Payloads()
    payloads.role(True)
    payloads.named(f"p{n}" for n in range(LOOKS_MAX + 10))
    assert len(payloads.next_round()) == LOOKS_MAX
    assert len(payloads.next_round()) == 10
