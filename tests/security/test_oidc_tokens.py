"""Tokens of an identity provider: nothing that anybody sends, or that the provider signs, ends in anything but a named
refusal or a person."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("joserfc", reason="joserfc is not installed: pip install 'actorgrid[oidc]'")

from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from actorgrid.actors.security.oidc_tokens import (
    KEYS_MAX,
    TokenRules,
    check_token,
    find_key,
    key_id_for,
    read_header,
    read_keys,
)
from actorgrid.errors import ActorGridError, BadRequest, NotAllowed
from actorgrid.group_bindings import GroupBinding, choose_binding, read_binding
from tests.identity_provider import b64, signed

NOW = 1_800_000_000.0
ISSUER = "https://id.example.org"
ALGORITHMS = ("RS256", "ES256", "Ed25519")
RULES = TokenRules(ISSUER, "c", "c", "id_token", ALGORITHMS, "sub", "", "groups", 60.0, 300.0)
KEY = ECKey.generate_key("P-256", {"kid": "k1"})
KEYS = read_keys([KEY.as_dict(private=False)])
GOOD = {"iss": ISSUER, "aud": "c", "sub": "ann", "iat": NOW, "exp": NOW + 60, "groups": ["ml"]}

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    -1e300,
    10**400,
    "",
    "x",
    "\ud800",
    "\0",
    "a" * 300,
]
ODD += [[], {}, [None], ["c"], ["c", "c"], [{}], {"a": 1}, [[[]]], ISSUER, "c", NOW, NOW - 1e6, NOW + 1e6]


def outcome(token: str) -> Any:
    try:
        header = read_header(token, RULES)
        key = find_key(KEYS, header)
        return None if key is None else check_token(token, header, key, RULES, NOW)
    except ActorGridError as error:
        assert error.message and error.to_dict()
        return error


def test_whatever_a_provider_signs_is_a_person_or_a_named_refusal() -> None:
    dice, people = random.Random(11), 0
    for _ in range(300):
        claims = {**GOOD}
        for name in dice.sample([*GOOD, "nbf", "azp", "nonce", "email"], dice.randint(1, 3)):
            claims[name] = dice.choice(ODD)
        found = outcome(signed(claims, KEY, {"alg": "ES256", "kid": "k1"}))
        if not isinstance(found, ActorGridError):
            people += 1
            assert (claims["iss"], claims["aud"] in ("c", ["c"], ["c", "c"]), found.subject) == (
                ISSUER,
                True,
                claims["sub"],
            )
    assert people


def test_whatever_a_stranger_sends_is_a_named_refusal() -> None:
    dice = random.Random(12)
    for _ in range(500):
        raw = [b64(dice.randbytes(dice.randint(0, 20))) for _ in range(3)]
        odd = b64(json.dumps(dice.choice([dice.choice(ODD), {"alg": "ES256", "kid": dice.choice(ODD)}])).encode())
        for token in (".".join(raw), f"{odd}.{raw[1]}.{raw[2]}", f"{raw[0]}\u00e4.x.y", "." * dice.randint(0, 5)):
            found = outcome(token)
            assert found is None or isinstance(found, ActorGridError)


def test_a_changed_character_anywhere_is_found() -> None:
    token = signed(GOOD, KEY, {"alg": "ES256", "kid": "k1"})
    assert outcome(token).user == "ann"
    dice = random.Random(7)
    for _ in range(200):
        at = dice.randrange(len(token))
        other = token[:at] + dice.choice("abcXYZ019-_.") + token[at + 1 :]
        found = outcome(other)
        same = other == token or key_id_for(other, 5) == key_id_for(token, 5)
        assert found is None or isinstance(found, ActorGridError) or same, (at, other[at])


def test_a_second_signature_of_the_same_text_gives_the_same_key_of_the_cluster() -> None:
    first, second = (signed(GOOD, KEY, {"alg": "ES256", "kid": "k1"}) for _ in range(2))
    assert first != second and key_id_for(first, 5) == key_id_for(second, 5)
    assert key_id_for(first, 5) != key_id_for(signed({**GOOD, "jti": "2"}, KEY, {"alg": "ES256", "kid": "k1"}), 5)


def test_keys_are_those_for_signatures_that_are_strong_and_public() -> None:
    rsa, ed = RSAKey.generate_key(2048), OKPKey.generate_key("Ed25519", {"kid": "e"})
    told: list[Any] = [each.as_dict(private=False) for each in (rsa, rsa, ed, KEY)]
    told[0] = {**told[0], "n": told[0]["n"][:171]}  # 1,024 bits
    told += [{**told[1], "use": "enc"}, OctKey.generate_key(256).as_dict(), {"kty": "EC"}, {"kty": ["EC"]}, None, []]
    told += [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, {**told[3], "kid": 7}, {**told[1], "n": 7}]
    found = read_keys(told)
    assert [key.kind for key in found] == ["RSA", "OKP", "EC"]
    assert len(read_keys([told[3]] * 100)) == KEYS_MAX
    token = signed(GOOD, ed, {"alg": "Ed25519", "kid": "e"})
    key = find_key(found, read_header(token, RULES))
    assert key is not None and check_token(token, read_header(token, RULES), key, RULES, NOW).user == "ann"


@pytest.mark.parametrize(
    "line", ["", "ml", "ml=user", "=user@lab", "ml=root@lab", "ml=service@lab", "ml=user@", "ml=user@a b"]
)
def test_a_line_that_gives_nobody_anything_is_refused(line: str) -> None:
    with pytest.raises(BadRequest):
        read_binding(line)


@pytest.mark.parametrize("role", [None, "user"])
@pytest.mark.parametrize("tenant", [None, "x", "y"])
@pytest.mark.parametrize("groups", ["", "a", "b", "ba", "cb", "d"])
def test_nobody_gets_what_no_line_gives_to_one_of_his_groups(groups: str, tenant: Any, role: Any) -> None:
    lines = [read_binding(line) for line in ("a=user@x", "b=admin@x", "c=user@y", "a=x=viewer@*")]
    assert lines[3] == GroupBinding("a=x", lines[3].role, "*")
    fitting = [each for each in lines if each.group in groups and tenant in (None, each.tenant)]
    fitting = [each for each in fitting if role in (None, each.role.value)]
    if fitting:
        assert choose_binding(lines, groups, tenant, role) == fitting[0]
    else:
        with pytest.raises(NotAllowed):
            choose_binding(lines, groups, tenant, role)
