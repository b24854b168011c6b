"""Whom a replica speaks to: all of its site, and by a few relays the others."""

from __future__ import annotations

import random
from collections import Counter

from actorgrid.actors.replication.exchange import GossipLimits
from actorgrid.actors.replication.peer_choice import PeerChoice
from actorgrid.rendezvous import ranked

LIMITS = GossipLimits()


def choices(sites: dict[str, int]) -> dict[str, PeerChoice]:
    where = {f"{site}{number}": site for site, count in sites.items() for number in range(count)}
    made = {name: PeerChoice(name, random.Random(name), LIMITS) for name in where}
    for choice in made.values():
        choice.set_members(list(where), where)
    return made


def test_without_sites_all_are_near_and_nobody_relays() -> None:
    choice = PeerChoice("a", random.Random(1), LIMITS)
    choice.set_members(["a", "b", "c"], {})
    assert choice.near == choice.others == ["b", "c"]
    assert choice.begin_round() and choice.bring_to() == []
    assert not choice.is_far("b") and choice.few


def test_all_hosts_agree_who_relays_and_each_relay_has_its_partner() -> None:
    made = choices({"east": 6, "west": 6})
    relays = [name for name, choice in made.items() if choice.relays_to("west" if "east" in name else "east")]
    assert Counter(made[name].site for name in relays) == {"east": 2, "west": 2}
    turned = {name: [other for other in made[name].begin_round() if made[name].is_far(other)] for name in relays}
    assert sorted(other for others in turned.values() for other in others) == sorted(relays), "to each other, in pairs"
    assert sum(len(choice.bring_to()) for choice in made.values()) == 2, "one of each site brings what is new"


def test_different_pairs_of_sites_have_different_relays() -> None:
    made = choices({f"s{number}": 10 for number in range(8)})
    served = Counter(name for name, choice in made.items() for other in choice.far_sites if choice.relays_to(other))
    assert sum(served.values()) == 8 * 7 * LIMITS.relays
    assert max(served.values()) <= 5 and len(served) > 35


def test_a_relay_that_is_known_to_be_away_is_replaced_on_both_sides() -> None:
    made = choices({"east": 4, "west": 4})
    first = next(name for name, choice in made.items() if choice.site == "east" and choice.bring_to())
    for choice in made.values():
        choice.set_away([first])
    assert not any(first in choice.begin_round() for choice in made.values() if choice.site == "west")
    bring = [name for name, choice in made.items() if choice.bring_to() and choice.site == "east" and name != first]
    assert len(bring) == 1


def test_a_silent_partner_is_passed_over_and_comes_back_with_its_first_word() -> None:
    made = choices({"east": 3, "west": 3})
    choice = next(each for each in made.values() if each.bring_to())
    partner = choice.bring_to()[0]
    others = [name for name in choice.others if name != partner]
    for _ in range(LIMITS.silent_rounds + 1):
        choice.begin_round()
        for name in others:
            choice.heard(name)
    assert partner not in choice.partners(choice.far_sites[0])
    choice.heard(partner)
    assert partner in choice.partners(choice.far_sites[0])


def test_with_all_of_a_site_silent_each_is_turned_to_before_long() -> None:
    """Who holds the same says nothing, so the silent one that lives has to be found among those that are dead."""
    choice = choices({"east": 1, "west": 7})["east0"]
    for _ in range(20 * LIMITS.silent_rounds):
        choice.begin_round()
    assert len(choice.partners("west")) == LIMITS.relays
    turned = {name for _ in range(7) for name in choice.begin_round()}
    assert turned == {f"west{number}" for number in range(7)}


def test_now_and_then_a_host_that_is_no_relay_turns_to_another_site() -> None:
    made = choices({"east": 6, "west": 6})
    choice = next(each for each in made.values() if each.site == "east" and not each.relays_to("west"))
    rounds = 3000
    afar = 0
    for _ in range(rounds):
        for name in choice.near:
            choice.heard(name)
        afar += sum(map(choice.is_far, choice.begin_round()))
    expected = rounds / (LIMITS.odd_rounds * 6)
    assert expected / 2 < afar < 2 * expected


def large(**limits: int) -> PeerChoice:
    names = [f"host-{number}" for number in range(60)]
    choice = PeerChoice("host-0", random.Random(1), GossipLimits(**limits))
    choice.set_members(names, {})
    return choice


def test_in_a_large_site_digests_go_to_neighbours_and_now_and_then_to_anybody() -> None:
    choice = large()
    assert not choice.few and len(choice.neighbours) < 24
    turned = Counter(name for _ in range(2_000) for name in choice.begin_round())
    assert sum(turned.values()) == 2_000 * LIMITS.digests
    by_chance = sum(count for name, count in turned.items() if name not in choice.neighbours)
    assert 100 < by_chance < 400, "an eighth of the rounds, but for those that met a neighbour"
    assert set(turned) == set(choice.near)


def test_who_does_not_acknowledge_gets_the_next_digest_and_its_neighbours_what_is_new() -> None:
    choice = large(chance_rounds=2**16)
    name = choice.pass_on("host-0")[0]
    choice.unanswered(name)
    assert choice.begin_round()[0] == name
    assert Counter(each for _ in range(50) for each in choice.begin_round())[name] < 50, "once, and then as any other"
    assert name in choice.pass_on("host-0") and len(choice.pass_on("host-0")) > len(large().pass_on("host-0"))
    choice.heard(name)
    assert choice.pass_on("host-0") == large().pass_on("host-0")


def test_who_is_known_to_be_away_is_passed_over_until_all_are() -> None:
    choice = large(chance_rounds=2**16)
    gone = choice.pass_on("host-0")[:1]
    choice.set_away(gone)
    assert not set(gone) & set(choice.pass_on("host-0"))
    assert not any(set(gone) & set(choice.begin_round()) for _ in range(200))
    choice.set_away(choice.near)
    assert choice.begin_round(), "somebody has to be tried"


def test_relays_of_a_large_site_and_who_would_take_their_place_know_each_other() -> None:
    made = choices({"east": 40, "west": 40})
    order = ranked("shared state\0east\0west", [name for name in made if made[name].site == "east"])
    known = order[: LIMITS.relays_known]
    assert all(set(known) - {name} <= set(made[name].neighbours) for name in known)
    last = made[order[-1]]
    for _ in range(5_000):
        last.begin_round()
    assert not last.relays_to("west"), "it hears of none of them, and takes none of them for silent"


def test_who_goes_moves_nobody_else() -> None:
    names = [f"host-{number}" for number in range(50)]
    order = ranked("purpose", names)
    assert ranked("purpose", reversed(names)) == order != ranked("other", names)
    assert ranked("purpose", [name for name in names if name != order[0]]) == order[1:]
