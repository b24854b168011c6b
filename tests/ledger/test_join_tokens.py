"""Join tokens: the text that a person carries, the record in the ledger, and what a claim proves."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.ledger.credential_records import JoinTokenRecord
from actorgrid.actors.ledger.join_tokens import (
    JoinClaim,
    JoinToken,
    _check,
    check_claim,
    make_token,
    read_token,
    redeem,
    revoke_token,
)
from actorgrid.actors.security.token_rate_limit import SOURCES_MAX, TokenRateLimit
from actorgrid.errors import (
    BadRequest,
    JoinTokenExpired,
    JoinTokenRevoked,
    JoinTokenUsed,
    MalformedJoinToken,
    Overloaded,
    UnknownJoinToken,
    WrongCluster,
)
from tests.security.rig import CLUSTER, OTHER_CLUSTER

AT = 1_000_000.0
AUTHORITY = "5a" * 32
KEY, OTHER_KEY = "aa" * 32, "bb" * 32


def made(**options: Any) -> tuple[JoinToken, JoinTokenRecord]:
    return make_token(CLUSTER, AUTHORITY, b"token", b"sixteen bytes ..", AT, **options)


TOKEN, RECORD = made()


def redeemed(
    record: JoinTokenRecord | None, host_id: str = "host-b", key: str = KEY, at: float = AT + 1
) -> JoinTokenRecord:
    return redeem(record, CLUSTER, host_id, key, at)


# -- the text


@given(st.binary(min_size=5, max_size=5), st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32))
def test_a_token_is_read_as_it_was_written(token_id: bytes, secret: bytes, authority: bytes) -> None:
    token, _ = make_token(CLUSTER, authority.hex(), token_id, secret, AT)
    assert read_token(token.text) == token
    assert read_token(f"\n {token.text.upper()[:70]} \r\n{token.text.upper()[70:]}\t") == token


def test_letters_that_look_like_digits_are_read_as_them() -> None:
    head, cluster, authority, token_id, secret, check = TOKEN.text.split(".")
    confused = [part.replace("0", "O").replace("1", "l") for part in (authority, token_id, secret, check)]
    assert read_token(".".join((head, cluster, *confused))) == TOKEN


def test_the_secret_is_in_neither_the_record_nor_the_printed_token() -> None:
    assert TOKEN.secret.hex() not in json.dumps(RECORD)
    assert TOKEN.text.split(".")[4] not in repr(TOKEN) + json.dumps(RECORD)
    assert "sixteen" not in repr(TOKEN)


@given(st.integers(5, len(TOKEN.text) - 1), st.sampled_from("0123456789abcdefghjkmnpqrstvwxyz"))
def test_one_wrong_character_is_found_and_named(at: int, put: str) -> None:
    text = TOKEN.text
    if text[at] in (".", put):
        return
    with pytest.raises(MalformedJoinToken, match="damaged") as refused:
        read_token(text[:at] + put + text[at + 1 :])
    if at < len(text) - 8:
        assert f"did you mean {text[at]!r} instead of {put!r} at character {at + 1}?" in str(refused.value)
    else:
        assert f"did you mean {text[-8:]!r} at the end?" in str(refused.value)


def test_two_swapped_characters_are_found_and_named() -> None:
    text = TOKEN.text
    at = next(n for n in range(60, len(text)) if len({*text[n : n + 2], "."}) == 3)
    with pytest.raises(MalformedJoinToken, match=f"did you mean '{text[at : at + 2]}' instead"):
        read_token(text[:at] + text[at + 1] + text[at] + text[at + 2 :])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "not a join token"),
        ("dGhpcyBpcyBhbiBhZG1pbiB0b2tlbg", "admin token of a host is not one"),
        (TOKEN.text[:-3], "check in the join token has lost"),
        (TOKEN.text[:-12], "cut off"),
        (TOKEN.text + "x", "gained"),
        (TOKEN.text * 2, "more was pasted"),
        (TOKEN.text.replace(CLUSTER, CLUSTER[:-1] + "Ö"), "damaged"),
        ("agj1." + "." * 1000, "cut off"),
        ("agj2" + TOKEN.text[4:], "not a join token"),
    ],
)
def test_what_is_no_token_says_why(text: str, match: str) -> None:
    with pytest.raises(MalformedJoinToken, match=match):
        read_token(text)


@given(st.text(max_size=200) | st.text("agj1.0bcd", max_size=200).map(lambda text: f"agj1.{text}"))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    with pytest.raises(MalformedJoinToken):
        read_token(text)


@pytest.mark.parametrize(
    "options",
    [
        {"ttl_s": 1.0},
        {"ttl_s": 1e9},
        {"ttl_s": float("nan")},
        {"uses": 0},
        {"uses": 1001},
        {"roles": ["root"]},
        {"roles": []},
    ],
)
def test_a_token_without_bounds_is_not_made(options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        made(**options)


# -- the record


def test_a_token_lets_in_one_host() -> None:
    once = redeemed(RECORD)
    assert RECORD["used_by"] == [] and [use["host_id"] for use in once["used_by"]] == ["host-b"]
    with pytest.raises(JoinTokenUsed):
        redeemed(once, "host-c", OTHER_KEY)


def test_the_same_host_with_the_same_key_comes_again_and_no_other_key_does() -> None:
    once = redeemed(RECORD)
    assert redeemed(once, at=AT + 2) == once
    with pytest.raises(JoinTokenUsed):
        redeemed(once, key=OTHER_KEY)
    with pytest.raises(JoinTokenUsed):
        redeemed(once, host_id="host-c")


def test_a_token_for_several_counts_them() -> None:
    record = made(uses=3)[1]
    for number in range(3):
        record = redeemed(record, f"host-{number}")
    with pytest.raises(JoinTokenUsed, match="used up"):
        redeemed(record, "host-9")


def test_time_is_over_for_everyone() -> None:
    record = made(ttl_s=60)[1]
    once = redeemed(record, at=AT + 60)
    for late in (record, once):
        with pytest.raises(JoinTokenExpired, match="has expired"):
            redeemed(late, at=AT + 61)


def test_a_token_taken_back_lets_nobody_in() -> None:
    once = redeemed(made(uses=5)[1])
    revoked = revoke_token(once, AT + 5)
    assert revoke_token(revoked, AT + 6) == revoked
    with pytest.raises(JoinTokenRevoked):
        redeemed(revoked, at=AT + 6)


def test_no_record_and_another_clusters_are_named() -> None:
    with pytest.raises(UnknownJoinToken):
        redeemed(None)
    with pytest.raises(UnknownJoinToken):
        revoke_token(None, AT)
    with pytest.raises(WrongCluster):
        redeem(RECORD, OTHER_CLUSTER, "host-b", KEY, AT)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([KEY, OTHER_KEY]), st.floats(AT, AT + 120)), max_size=12)
)
def test_never_more_hosts_than_uses_and_the_same_on_every_replica(asked: list[tuple[str, str, float]]) -> None:
    def play() -> JoinTokenRecord:
        record = made(uses=2, ttl_s=60)[1]
        for host, key, at in asked:
            try:
                record = redeemed(json.loads(json.dumps(record)), host, key, at)
            except (JoinTokenUsed, JoinTokenExpired):
                continue
        return record

    record = play()
    assert record == play()
    assert len(record["used_by"]) <= 2
    assert all(use["at"] <= AT + 60 for use in record["used_by"])


# -- the claim

CLAIM = JoinClaim(CLUSTER, TOKEN.token_id, "host-b", b"n" * 32, "cc" * 32, b"request", b"capabilities").signed(TOKEN)


def test_the_holder_of_the_secret_is_believed() -> None:
    check_claim(RECORD, CLAIM)


@pytest.mark.parametrize("name", [field.name for field in fields(JoinClaim)])
def test_a_claim_with_anything_changed_is_not_believed(name: str) -> None:
    value = getattr(CLAIM, name)
    changed = replace(CLAIM, **{name: value[:-1] + (b"?" if isinstance(value, bytes) else "?")})
    with pytest.raises(UnknownJoinToken):
        check_claim(RECORD, changed)


def test_parts_of_a_claim_cannot_be_moved_into_one_another() -> None:
    moved = replace(CLAIM, request=CLAIM.request + b"c", capabilities=CLAIM.capabilities[1:])
    with pytest.raises(UnknownJoinToken):
        check_claim(RECORD, moved)


def test_a_wrong_secret_an_unknown_id_and_another_tokens_record_look_alike() -> None:
    guess = CLAIM.signed(replace(TOKEN, secret=bytes(16)))
    other = make_token(CLUSTER, AUTHORITY, b"other", b"sixteen bytes ..", AT)[1]
    said = set()
    for record, claim in ((RECORD, guess), (None, CLAIM), (other, CLAIM)):
        with pytest.raises(UnknownJoinToken) as refused:
            check_claim(record, claim)
        said.add(str(refused.value))
    assert len(said) == 1


def test_a_reader_of_the_ledger_cannot_make_a_claim() -> None:
    # All that a record has of the secret is the public half of the key.
    forged = CLAIM.signed(replace(TOKEN, secret=bytes.fromhex(RECORD["verify_key"])[:16]))
    with pytest.raises(UnknownJoinToken):
        check_claim(RECORD, forged)


# -- wrong ones


def test_an_address_has_five_tries_and_gets_one_back_every_ten_seconds() -> None:
    limit = TokenRateLimit()
    for _ in range(5):
        limit.check("10.0.0.1", 0.0)
        limit.count("10.0.0.1", 0.0)
    with pytest.raises(Overloaded, match="from this address"):
        limit.check("10.0.0.1", 9.0)
    limit.check("10.0.0.2", 9.0)
    limit.check("10.0.0.1", 10.0)
    assert limit.wrong_total == 5


def test_one_ipv6_network_is_one_address() -> None:
    limit = TokenRateLimit()
    for number in range(5):
        limit.count(f"2001:db8::{number}", 0.0)
    with pytest.raises(Overloaded):
        limit.check("2001:db8::ffff", 0.0)
    limit.check("2001:db8:0:1::1", 0.0)


def test_all_addresses_together_have_a_limit_and_few_are_remembered() -> None:
    limit = TokenRateLimit()
    for number in range(50):
        limit.count(f"10.0.1.{number}", 0.0)
    with pytest.raises(Overloaded, match="too many wrong join tokens"):
        limit.check("10.9.9.9", 0.0)
    limit.check("10.9.9.9", 1.0)
    for number in range(SOURCES_MAX + 10):
        limit.count(f"10.1.{number // 256}.{number % 256}", 100.0 + number)
    assert len(limit._sources) == SOURCES_MAX


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    limit = TokenRateLimit()
    for now_s in (5.0, 4.0, 3.0, 2.0, 1.0):
        limit.count("10.0.0.1", now_s)
    with pytest.raises(Overloaded):
        limit.check("10.0.0.1", 5.0)


def test_a_token_with_a_right_check_over_nonsense_is_refused() -> None:
    head, cluster, authority, token_id, secret, _ = TOKEN.text.split(".")
    for body in (
        ".".join((head, cluster, "u" * len(authority), token_id, secret)),
        ".".join((head, cluster, authority, token_id, secret[:-1] + "z")),
        ".".join((head, "-lab", authority, token_id, secret)),
    ):
        with pytest.raises(MalformedJoinToken, match="not one that actorgrid made"):
            read_token(f"{body}.{_check(body)}")


def test_a_source_that_is_no_address_is_counted_as_it_is_written() -> None:
    limit = TokenRateLimit()
    for _ in range(5):
        limit.count("unix", 0.0)
    with pytest.raises(Overloaded):
        limit.check("unix", 0.0)
