"""Signing in by an identity provider: a real one over HTTP, a real door, keys that every route takes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("joserfc", reason="joserfc is not installed: pip install 'actorgrid[oidc]'")

from aiohttp import web

from actorgrid import identity_provider
from actorgrid.actors.gateway import sign_in
from actorgrid.actors.gateway.schemas.keys import KeyMade
from actorgrid.actors.security import provider_keys
from actorgrid.actors.security.token_rate_limit import Rate, TokenRateLimit
from actorgrid.cli.plug_in_checks import check_oidc
from actorgrid.configs.oidc_section import OidcSection
from tests.identity_provider import CLIENT, TestProvider, b64

GROUPS = ["ml=user@lab", "ml-leads=operator@lab", "biz=viewer@biz", "root=admin@*"]


@pytest.fixture(scope="module")
def shared_provider() -> Iterator[TestProvider]:
    made = TestProvider()
    yield made
    made.close()


@pytest.fixture
def provider(shared_provider: TestProvider) -> Iterator[TestProvider]:
    first = {"k1": shared_provider.keys["k1"]}
    shared_provider.keys = dict(first)
    shared_provider.asked.clear()
    yield shared_provider
    shared_provider.keys, shared_provider.instead, shared_provider.document = first, None, {}


class SignInDoor:
    """The door, as somebody with a token of the provider sees it."""

    def __init__(self, town: Any, provider: TestProvider) -> None:
        self.town, self.provider = town, provider
        self.number = 0

    def sign_in(self, token: str, **more: Any) -> Any:
        return self.town.http("POST", "/login/oidc", token=None, json={"token": token, **more})

    def token(self, **more: Any) -> str:
        """One that was not shown yet."""
        self.number += 1
        return self.provider.token(**{"jti": str(self.number), **more})

    def refusal(self, token: str, **more: Any) -> str:
        reply = self.sign_in(token, **more)
        assert reply.status >= 400, reply.body
        return f"{reply.error['code']}: {reply.error['message']} {reply.error['asked']} {reply.error['found']}"

    @property
    def keys(self) -> list[Any]:
        return list(self.town.http("GET", "/api/keys").json["keys"])


@pytest.fixture
def door(real_town: Any, provider: TestProvider) -> SignInDoor:
    real_town.host.settings.oidc = OidcSection(issuer=provider.issuer, client_id=CLIENT, groups=GROUPS)
    real_town.gateway._app.sign_ins._tries = TokenRateLimit("tokens", Rate(1e6, 1e6), Rate(1e6, 1e6))
    return SignInDoor(real_town, provider)


def test_a_token_is_given_a_key_with_the_rights_of_the_group_and_no_more(door: SignInDoor) -> None:
    offer = door.town.http("GET", "/login/oidc", token=None).json
    assert offer == {"issuer": door.provider.issuer, "client_id": CLIENT, "scopes": "openid", "token": "id_token"}
    made = door.sign_in(door.token()).json
    KeyMade.model_validate(made)
    assert (made["user_id"], made["role"], made["tenant"]) == ("ann@lab", "user", "lab")
    assert made["made_by"] == "oidc ann" and made["expires_at"] == made["made_at"] + 43_200
    me = door.town.http("GET", "/api/me", made["key"]).json
    assert (me["user_id"], me["role"], me["tenant"]) == ("ann@lab", "user", "lab")
    assert door.town.http("POST", "/api/keys", made["key"], json={"user_id": "eve", "role": "admin"}).status == 403
    assert door.town.http("GET", "/api/config", made["key"]).status == 403
    body = {"command": ["true"], "task_id": "j", "user_id": "eve@biz"}
    assert door.town.http("POST", "/api/jobs", made["key"], json=body).status == 201
    assert door.town.http("GET", "/api/jobs/j").json["user_id"] == "ann@lab"
    # Taken back, it opens nothing.
    assert door.town.http("DELETE", f"/api/keys/{made['id']}", made["key"]).status == 200
    assert door.town.http("GET", "/api/me", made["key"]).status == 401


def test_the_first_line_counts_and_others_can_be_asked_for(door: SignInDoor) -> None:
    groups = ["biz", "ml-leads", "ml", "other"]
    made = door.sign_in(door.token(groups=groups)).json
    assert (made["role"], made["tenant"]) == ("user", "lab")
    made = door.sign_in(door.token(groups=groups), role="operator").json
    assert (made["role"], made["tenant"]) == ("operator", "lab")
    made = door.sign_in(door.token(groups=groups), tenant="biz", ttl_s=60).json
    assert (made["user_id"], made["role"], made["expires_at"]) == ("ann@biz", "viewer", made["made_at"] + 60)
    assert "viewer@biz" in door.refusal(door.token(groups=groups), tenant="*")
    assert "NotAllowed" in door.refusal(door.token(groups=groups), role="admin")
    assert door.sign_in(door.token(groups="root")).json["tenant"] == "*"
    asked = door.sign_in(door.token(), ttl_s=604_800).json
    assert asked["expires_at"] == asked["made_at"] + 43_200, "no longer than the settings say"


def test_who_has_no_group_with_a_role_is_refused_by_name(door: SignInDoor) -> None:
    said = door.refusal(door.token(groups=["cooks", "gardeners"]))
    assert said.startswith("NotAllowed") and "cooks, gardeners" in said
    assert "no group" in door.refusal(door.token(groups=[]))
    assert "the claim groups" in door.refusal(door.token(groups=None))
    assert "no list" in door.refusal(door.token(groups=[1]))
    # One who is taken out of the group: what he has goes on until it is taken back, and nothing new comes.
    made = door.sign_in(door.token()).json
    assert door.refusal(door.token(groups=["cooks"])).startswith("NotAllowed")
    assert door.town.http("DELETE", f"/api/keys/{made['id']}").status == 200
    assert door.town.http("GET", "/api/me", made["key"]).status == 401
    # And a group from which the role is taken.
    assert door.town.http("PUT", "/api/config/oidc.groups", json={"value": ["biz=viewer@biz"]}).status == 200
    door.town.until(lambda: len(door.town.host.settings.oidc.groups) == 1, "the setting")
    assert door.refusal(door.token()).startswith("NotAllowed")


def test_what_is_no_good_token_is_refused(door: SignInDoor) -> None:
    provider, now = door.provider, int(time.time())
    provider.add_key("k2")
    provider.add_key("k3")
    stranger = TestProvider()
    try:
        foreign = stranger.token(iss=provider.issuer)
    finally:
        stranger.close()
    good = door.token()
    head, claims, signature = good.split(".")
    wrong = {
        "issuer": door.token(iss="https://elsewhere.example"),
        "somebody else": door.token(aud="other"),
        "azp": door.token(aud=[CLIENT, "other"]),
        "another client": door.token(azp="other"),
        "expired": door.token(exp=now - 61),
        "not good yet": door.token(nbf=now + 90),
        "not made just now": door.token(iat=now - 500),
        "ago": door.token(iat=now + 90),
        "exp is no time": door.token(exp=None),
        "iat is no time": door.token(iat=None),
        "exp is": door.token(exp=float("nan")),
        "nobody": door.token(sub=None),
        "nonce": door.token(nonce="of another"),
        "not taken": provider.unsigned(),
        "HS256": provider.signed_with_the_public_key(),
        "RS512": provider.token(header={"alg": "RS512"}),
        "'k2', RS256": f"{b64(json.dumps({'alg': 'RS256', 'kid': 'k2'}).encode())}.{claims}.{signature}",
        "signature is not": foreign,
        "the provider's": f"{head}.{provider.token(sub='eve').split('.')[1]}.{signature}",
        "at+jwt": door.token(header={"typ": "at+jwt"}),
        "kid '../k'": door.token(header={"kid": "../k"}),
        "kid None": door.token(kid="k2", header={"kid": None}),
        "three parts": "a.b",
        "no JSON object": "a.b.c",
        "no JSON": b64(b"[" * 20_000) + ".b.c",
    }
    for words, token in wrong.items():
        said = door.refusal(token)
        assert said.startswith("WrongToken") and words in said, (words, said)
    assert door.sign_in(door.token(exp=now - 30, iat=now - 320)).status == 200, "within the skew"
    assert door.sign_in(door.token(header={"kid": None})).status == 200, "it can be one key only"
    assert door.sign_in(door.token(nonce="mine"), nonce="mine").status == 200
    assert door.sign_in(good).status == 200
    long = [f"group-{number}-of-many" for number in range(500)] + ["ml"]
    assert door.sign_in(door.token(groups=long, header={"x5t": "a" * 700})).status == 200
    assert "given for that token already" in door.refusal(good)
    made = len(door.keys)
    assert door.sign_in("x" * 40_000).error["code"] == "MalformedBody"
    assert door.town.http("POST", "/login/oidc", token=None, data=b"x" * 70_000).error["code"] == "BodyTooLarge"
    assert len(door.keys) == made == 5


def test_names_are_plain_ones_of_the_stated_claim(door: SignInDoor) -> None:
    settings = door.town.host.settings
    assert "none here" in door.refusal(door.token(sub="ann@biz")), "a claim says no tenant"
    assert "none here" in door.refusal(door.token(sub="a/b"))
    settings.oidc = settings.oidc.model_copy(update={"user_claim": "email", "user_domain": "example.org"})
    mail: dict[str, Any] = {"email": "Ann.Lee@example.org", "email_verified": True}
    assert door.sign_in(door.token(**mail)).json["user_id"] == "Ann.Lee@lab"
    assert "not verified" in door.refusal(door.token(email=mail["email"]))
    assert "another domain" in door.refusal(door.token(email="ann@evil.example", email_verified=True))
    assert "does not say who" in door.refusal(door.token())
    settings.oidc = settings.oidc.model_copy(update={"user_claim": "preferred_username", "user_domain": ""})
    assert "host's own" in door.refusal(door.token(preferred_username="admin", groups=["root"]))
    settings.oidc = settings.oidc.model_copy(update={"groups_claim": "realm_access.roles", "user_claim": "sub"})
    assert door.sign_in(door.token(realm_access={"roles": ["biz"]})).json["user_id"] == "ann@biz"


def test_an_access_token_is_taken_where_the_settings_say_so(door: SignInDoor) -> None:
    settings = door.town.host.settings
    settings.oidc = settings.oidc.model_copy(update={"token": "access_token", "audience": "api://grid"})
    assert door.sign_in(door.token(aud="api://grid", azp="any", header={"typ": "at+jwt"})).status == 200
    assert "somebody else" in door.refusal(door.token(header={"typ": "at+jwt"}))


def test_a_new_key_of_the_provider_is_found_and_made_up_ones_cost_it_nothing(
    door: SignInDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = door.provider
    assert door.sign_in(door.token()).status == 200
    for number in range(50):
        assert "does not have" in door.refusal(door.token(header={"kid": f"k-{number}"}))
    assert provider.asked.count("keys") == 1
    monkeypatch.setattr(provider_keys, "AGAIN_S", 0.0)
    provider.add_key("k2")
    assert door.sign_in(door.token(kid="k2")).status == 200
    assert provider.asked.count("keys") == 2
    # Rotated: the old one is gone once the keys are old.
    del provider.keys["k2"]
    assert door.sign_in(door.token()).status == 200 and provider.asked.count("keys") == 2
    monkeypatch.setattr(provider_keys, "KEPT_S", 0.0)
    monkeypatch.setattr(provider_keys, "AGAIN_S", 10.0)
    assert "does not have" in door.refusal(provider_token_of_gone_key(door))


def provider_token_of_gone_key(door: SignInDoor) -> str:
    door.provider.add_key("k3")
    try:
        return door.token(kid="k3")
    finally:
        del door.provider.keys["k3"]


def test_a_provider_that_is_down_slow_or_odd_is_said_so(door: SignInDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, settings = door.provider, door.town.host.settings
    monkeypatch.setattr(provider_keys, "FAILED_S", 0.0)
    monkeypatch.setattr(identity_provider, "ANSWER_S", 0.2)

    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while not (request.transport is None or request.transport.is_closing()):
            await answer.write(b" ")
            await asyncio.sleep(0.02)
        return answer

    odd = {
        "in time": drip,
        "redirects": lambda _: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
        "more than": lambda _: web.Response(body=b"[" * (identity_provider.ANSWER_BYTES_MAX + 10)),
        "no JSON object": lambda _: web.Response(body=b"[" * 200_000),
        "status 500": lambda _: web.json_response({}, status=500),
        "calls itself": lambda _: web.json_response({"issuer": provider.issuer + "/"}),
        "jwks_uri is": lambda _: web.json_response({"issuer": provider.issuer, "jwks_uri": "http://10.0.0.1/keys"}),
    }
    for words, instead in odd.items():
        provider.instead = instead
        said = door.refusal(door.token())
        assert said.startswith("HostUnreachable") and words in said, (words, said)
    provider.instead = lambda request: (
        web.json_response({"keys": [7, {}, {"kty": "RSA", "n": "AQAB", "e": "AQAB"}]})
        if (request.path.endswith("keys"))
        else None
    )
    assert "does not have" in door.refusal(door.token()), "keys that are none, and weak ones, are left out"
    provider.instead = None
    settings.oidc = settings.oidc.model_copy(update={"issuer": "http://127.0.0.1:9"})
    monkeypatch.setattr(provider_keys, "AGAIN_S", 0.0)
    assert "refused" in door.refusal(door.token())
    # In the pause after a failure nobody is asked.
    monkeypatch.setattr(provider_keys, "FAILED_S", 60.0)
    asked = len(provider.asked)
    settings.oidc = settings.oidc.model_copy(update={"issuer": provider.issuer})
    assert "refused" in door.refusal(door.token()) and len(provider.asked) == asked


def test_of_ones_keys_by_signing_in_the_oldest_gives_way(door: SignInDoor) -> None:
    made = [door.sign_in(door.token()).json for _ in range(6)]
    good = [key["id"] for key in door.keys if key["revoked_at"] is None]
    assert good == [each["id"] for each in made[-4:]]
    assert door.town.http("GET", "/api/me", made[0]["key"]).status == 401
    assert door.town.http("GET", "/api/me", made[-1]["key"]).status == 200


def test_tries_are_bounded(door: SignInDoor) -> None:
    door.town.gateway._app.sign_ins._tries = TokenRateLimit("tokens", Rate(1, 0.001), Rate(3, 0.001))
    codes = [door.sign_in("a.b.c").status for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]


def test_what_was_signed_in_or_refused_is_in_the_audit_log(door: SignInDoor) -> None:
    made = door.sign_in(door.token()).json
    door.refusal(door.token(sub="eve@lab", groups=["cooks"]))
    door.refusal("a.b.c")
    door.sign_in("x")
    door.town.until(lambda: door.town.gateway._app.audit.size >= 3, "the records to be on the disk")
    records = [each for each in door.town.http("GET", "/api/audit").json["records"] if each["object"] == "/login/oidc"]
    told = {(each["user"], each["key"], each["tenant"], each["outcome"]) for each in records}
    assert ("ann@lab", made["id"], "lab", "done") in told
    assert ("oidc eve at lab", "", "", "NotAllowed") in told and ("", "", "", "WrongToken") in told
    assert made["key"] not in str(records)


def test_a_host_without_provider_or_extra_says_what_to_do(door: SignInDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc.jwk", None)
    reply = door.sign_in(door.token())
    assert (reply.status, reply.error["code"]) == (400, "NotSupported")
    assert "pip install 'actorgrid[oidc]'" in reply.error["hint"]
    (finding,) = check_oidc(door.provider.issuer)
    assert (finding.level, finding.fix) == ("problem", "pip install 'actorgrid[oidc]', and restart")
    monkeypatch.undo()
    assert [each.level for each in check_oidc(door.provider.issuer)] == ["ok"] and not list(check_oidc(""))
    door.town.host.settings.oidc = OidcSection()
    assert door.sign_in(door.token()).status == 404
    assert door.town.http("GET", "/login/oidc", token=None).error["code"] == "NotFound"


def test_a_fetch_ends_before_a_strangers_connection_does() -> None:
    assert sign_in.FETCH_WAIT_S < 15, "a connection without a token lives for 15 s"
