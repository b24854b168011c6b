"""Who has the beginning of a prompt: exact while it is held, bounded, and gone with the replica's start."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.serving.prefix_index import BLOCK_BYTES, BLOCKS_OF_PROMPT_MAX, NUMBERS_MAX, PrefixIndex, chain_of

A, B = "a.1", "b.1"


def test_prompts_that_begin_alike_have_the_beginning_of_their_chains_in_common() -> None:
    head = b"h" * (3 * BLOCK_BYTES)
    one, other = chain_of(head + b"x" * BLOCK_BYTES), chain_of(head + b"y" * BLOCK_BYTES + b"z")
    assert len(one) == len(other) == 4
    assert one[:3] == other[:3] and one[3] != other[3]
    assert not set(chain_of(head, b"tenant")) & set(one)
    assert chain_of(b"short") == ()
    assert len(chain_of(b"x" * (BLOCKS_OF_PROMPT_MAX + 9) * BLOCK_BYTES)) == BLOCKS_OF_PROMPT_MAX


def test_each_replica_has_what_went_to_it_from_the_first_block_on() -> None:
    index = PrefixIndex()
    assert index.add(A, (1, 2, 3)) == (3, 2, 1)
    assert index.add(B, (1, 2, 9)) == (9, 2, 1)
    assert index.add(A, (1, 2, 3, 4)) == (4,)
    assert index.matches((1, 2, 3, 4, 5), (A, B)) == {A: 4, B: 2}
    assert index.matches((2, 3), (A,)) == {A: 2}  # blocks say what is before them: a chain never begins within another
    assert index.matches((7,), (A, B)) == {}


def test_the_least_recently_used_goes_first_and_the_beginning_of_a_prompt_last() -> None:
    index = PrefixIndex(blocks_max=4)
    index.add(A, (1, 2, 3))
    index.add(A, (1, 8, 9))
    assert len(index) == 4
    assert index.matches((1, 2, 3), (A,)) == {A: 2}
    assert index.matches((1, 8, 9), (A,)) == {A: 3}


def test_what_a_replica_had_is_gone_when_it_starts_again() -> None:
    index = PrefixIndex()
    index.add(A, (1, 2))
    index.keep(["a.2"])
    assert index.matches((1, 2), (A, "a.2")) == {}
    assert index.add("a.2", (1, 2)) == (2, 1)


def test_a_thousand_starts_leave_nothing_behind() -> None:
    index = PrefixIndex()
    index.add("stays", (1, 2, 3))
    for number in range(3 * NUMBERS_MAX):
        index.keep(["stays", f"r.{number}"])
        index.add(f"r.{number}", (1, 10 + number))
    assert index.matches((1, 2, 3), ("stays", A)) == {"stays": 3}
    assert len(index) < 2 * NUMBERS_MAX + 10


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.lists(st.integers(1, 3), max_size=6)), max_size=30),
    st.lists(st.integers(1, 3), max_size=6),
)
def test_it_says_what_a_set_for_each_replica_would_say(added: list[tuple[str, list[int]]], asked: list[int]) -> None:
    def chained(parts: list[int]) -> tuple[int, ...]:
        return tuple(hash(tuple(parts[: at + 1])) for at in range(len(parts)))

    index, plain = PrefixIndex(), {name: set[int]() for name in "abc"}
    for attempt, parts in added:
        new = index.add(attempt, chained(parts))
        assert set(new) == set(chained(parts)) - plain[attempt]
        plain[attempt] |= set(chained(parts))
    found = index.matches(chained(asked), "abc")
    for attempt in "abc":
        length = 0
        for block in chained(asked):
            if block not in plain[attempt]:
                break
            length += 1
        assert found.get(attempt, 0) == length
