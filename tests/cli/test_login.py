"""``login`` and ``logout``: the device flow against a real provider, a door that answers, the file of keys."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("joserfc", reason="joserfc is not installed: pip install 'actorgrid[oidc]'")

from actorgrid.client import device_flow, logins
from actorgrid.client.find import locate
from actorgrid.errors import BadRequest, CallTimeout, HostUnreachable, KeyExposed, NotAllowed, NotFound
from actorgrid.identity_provider import discover, read_endpoint
from tests.cli.conftest import Door, Invoke
from tests.identity_provider import CLIENT, TestProvider
from tests.self_signed import write_self_signed


@pytest.fixture(scope="module")
def shared_provider() -> Iterator[TestProvider]:
    made = TestProvider()
    yield made
    made.close()


@pytest.fixture
def provider(shared_provider: TestProvider) -> Iterator[TestProvider]:
    yield shared_provider
    shared_provider.polls, shared_provider.instead, shared_provider.document = [], None, {}
    shared_provider.forms.clear()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def offered(door: Door, provider: TestProvider) -> Door:
    offer = {"issuer": provider.issuer, "client_id": CLIENT, "scopes": "openid", "token": "id_token"}
    door.on("GET /login/oidc", offer)
    now = time.time()
    made = {"key": "agk1.k.s", "id": "k", "user_id": "ann@lab", "role": "user", "tenant": "lab", "made_at": now}
    door.on("POST /login/oidc", {**made, "expires_at": now + 3600, "url": "https://h:1", "ca_fingerprint": "ab"})
    return door


def test_one_signs_in_and_the_key_is_found_by_its_address(
    offered: Door, provider: TestProvider, alone: Invoke, home: Path
) -> None:
    provider.polls = [{"error": "authorization_pending"}] * 2
    done = alone("login", "--url", offered.url, "--tenant", "lab", "--ttl", "1h")
    assert done.exit_code == 0, done.stderr
    assert "WDJB-MJHT" in done.stderr and "ann@lab: user of tenant lab" in done.stderr
    assert "agk1" not in done.stdout + done.stderr
    asked, nonce = offered.asked[-1][2], provider.forms[0]["nonce"]
    assert (asked["tenant"], asked["ttl_s"], asked["nonce"]) == ("lab", 3600, nonce) and "role" not in asked
    assert asked["token"].count(".") == 2
    polls = [form for form in provider.forms if "grant_type" in form]
    assert len(polls) == 3 and polls[0] == {"grant_type": device_flow.GRANT, "device_code": "dc", "client_id": CLIENT}
    file = home / "actorgrid" / "logins.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert locate(url=offered.url)[1] == "agk1.k.s" and locate(url="http://127.0.0.1:1")[1] == ""
    assert locate(url=offered.url, token="other")[1] == "other"
    offered.on("DELETE /api/keys/k", {"id": "k", "revoked_at": 1.0})
    done = alone("logout", "--url", offered.url)
    assert done.exit_code == 0 and offered.asked[-1][0] == "DELETE /api/keys/k"
    assert locate(url=offered.url)[1] == ""
    assert alone("logout", "--url", offered.url).exit_code == 4


def test_a_key_that_is_printed_is_kept_nowhere(offered: Door, alone: Invoke, home: Path) -> None:
    assert alone("login", "--url", offered.url, "--print-key").stdout == "agk1.k.s\n"
    lines = alone("login", "--url", offered.url, "--print-key", "--json").stdout.splitlines()
    assert json.loads(lines[0])["code"] == "WDJB-MJHT" and json.loads(lines[1])["key"] == "agk1.k.s"
    assert not (home / "actorgrid").exists()


def flow(provider: TestProvider, pauses: list[float] | None = None) -> tuple[str, str]:
    sleep = (lambda _: None) if pauses is None else pauses.append
    found = discover(provider.issuer)
    return device_flow.device_token(found, CLIENT, "openid", "id_token", lambda _: None, sleep=sleep)


def test_the_pauses_are_those_that_the_provider_asks_for(provider: TestProvider) -> None:
    pauses: list[float] = []
    provider.polls = [{"error": "authorization_pending"}, {"error": "slow_down"}, {"error": "authorization_pending"}]
    flow(provider, pauses)
    assert pauses == [0.1, 0.1, 5.1, 5.1]


def test_who_says_no_or_comes_too_late_is_told(provider: TestProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.polls = [{"error": "access_denied", "error_description": "no\x1b[2J"}]
    with pytest.raises(NotAllowed) as refused:
        flow(provider)
    assert refused.value.found == "access_denied: no\\x1b[2J"
    provider.polls = [{"error": "expired_token"}]
    with pytest.raises(CallTimeout):
        flow(provider)
    monkeypatch.setattr(device_flow, "WAIT_MAX_S", 0.0)
    with pytest.raises(CallTimeout):
        flow(provider)


def test_what_is_no_provider_with_a_device_flow_is_named(provider: TestProvider) -> None:
    provider.document = {"device_authorization_endpoint": ""}
    with pytest.raises(NotFound):
        flow(provider)
    for document in ({"token_endpoint": 7}, {"token_endpoint": "https://a@b/"}, {"issuer": None}):
        provider.document = document
        with pytest.raises(HostUnreachable):
            flow(provider)
    provider.document = {}
    good = {"device_code": "d", "user_code": "u", "verification_uri": "https://id.example.org/go"}
    from aiohttp import web

    for wrong in (
        {"user_code": "a\nb"},
        {"verification_uri": "javascript:x"},
        {"device_code": None},
        {"user_code": ""},
    ):
        told: dict[str, Any] = {**good, **wrong}
        provider.instead = lambda request, told=told: (
            web.json_response(told) if request.path.endswith("/device") else None
        )
        with pytest.raises(HostUnreachable):
            flow(provider)


def test_a_file_that_others_read_is_not_used_and_what_is_over_is_left_out(home: Path) -> None:
    login: Any = {"key": "agk1.k.s", "key_id": "k", "user_id": "ann", "expires_at": time.time() + 60}
    for number in range(logins.LOGINS_MAX + 5):
        logins.keep_login(f"https://h{number}:1/", login)
    assert logins.find_login("https://h0:1") is None and logins.find_login("https://x,HTTPS://H9:1") == login
    logins.keep_login("https://old", {**login, "expires_at": 1.0})
    assert logins.find_login("https://old") is None
    path = logins.logins_file()
    path.chmod(0o644)
    with pytest.raises(KeyExposed):
        logins.find_login("https://h9:1")
    path.chmod(0o600)
    for text in ("[", "[]", '{"https://h9:1": 7}', '{"https://h9:1": {"key": 1}}'):
        path.write_text(text)
        assert logins.find_login("https://h9:1") is None


def test_a_provider_is_believed_by_its_certificate_alone(tmp_path: Path) -> None:
    pem = tmp_path / "id.pem"
    write_self_signed(pem, "logs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    secure = TestProvider(context)
    try:
        assert discover(secure.issuer, str(pem)).token_endpoint == f"{secure.issuer}/token"
        with pytest.raises(HostUnreachable, match="no answer of use") as refused:
            discover(secure.issuer)
        assert "cannot be trusted" in refused.value.found and refused.value.hint == "oidc.ca_file, --ca"
        with pytest.raises(BadRequest):
            discover(secure.issuer, str(tmp_path / "none.pem"))
        secure.document = {"token_endpoint": "http://127.0.0.1:1/token"}
        with pytest.raises(HostUnreachable) as refused:
            discover(secure.issuer, str(pem))
        assert "token_endpoint is" in refused.value.found, "from TLS nothing leads to where there is none"
    finally:
        secure.close()
    for text in (
        "http://id.example.org",
        "https://a:b@id.example.org",
        "ftp://x",
        "https://x/#a",
        "https://[",
        "https://a b",
    ):
        with pytest.raises(BadRequest):
            read_endpoint(text)
