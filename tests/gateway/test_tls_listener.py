"""HTTPS on the cluster's address: API keys, the certificate, and what strangers cost."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from actorgrid.actors.gateway.server import tls_listener
from actorgrid.actors.gateway.server.tls_listener import Certificate
from actorgrid.actors.security.host_material import HOST_FILE, store_material
from actorgrid.client.http import AdminHttp
from actorgrid.errors import ActorGridError, CertificateRefused, NotAllowed, NotFound, WrongToken
from tests.gateway.conftest import CLUSTER


@pytest.fixture
def afar(town: Any) -> Any:
    """Ask over HTTPS as a client of another machine does, with the node turning meanwhile."""

    def ask(token: str, use: Callable[[AdminHttp], Any], wanted: str = CLUSTER.bundle.signing.fingerprint) -> Any:
        http = AdminHttp(f"https://127.0.0.1:{town.host.enrolment.https_port}", token, retry_s=0, ca_fingerprint=wanted)
        future = town.client.loop.run_in_executor
        try:
            return town.run(call_in(future, lambda: use(http)))
        finally:
            http.close()

    async def call_in(run: Any, work: Callable[[], Any]) -> Any:
        return await run(None, work)

    return ask


def new_key(town: Any, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = town.http("POST", "/api/keys", json=body).json
    return made


def test_an_api_key_opens_the_door_until_it_is_revoked(town: Any, afar: Any) -> None:
    before = time.time()
    made = new_key(town, user_id="ann", ttl_s=3600)
    assert made["url"] == f"https://127.0.0.1:{town.host.enrolment.https_port}"
    assert made["ca_fingerprint"] == f"sha256:{CLUSTER.bundle.signing.fingerprint}"
    assert before <= made["expires_at"] - 3600 <= time.time()
    assert afar(made["key"], lambda http: http.get("/api/members"))["ca_fingerprint"] == made["ca_fingerprint"]
    (shown,) = afar(made["key"], lambda http: http.get("/api/keys"))["keys"]
    assert (shown["id"], shown["user_id"], shown["made_by"], shown["roles"]) == (made["id"], "ann", "admin", ["admin"])
    assert "sha256" not in shown
    second = afar(made["key"], lambda http: http.post("/api/keys", {"user_id": "bob"}))
    assert town.servers["consensus"].keys[second["id"]]["made_by"] == f"ann (key {made['id']})"
    assert made["key"] not in str(town.servers["consensus"].keys)
    assert afar(town.token, lambda http: http.get("/api/cluster"))["name"] == "actorgrid"

    town.http("DELETE", f"/api/keys/{made['id']}")
    with pytest.raises(WrongToken):
        afar(made["key"], lambda http: http.get("/api/members"))
    with pytest.raises(NotFound, match="actorgrid key list"):
        afar(second["key"], lambda http: http.delete("/api/keys/nothing"))


def test_a_key_for_models_opens_no_door_of_the_cluster(town: Any, afar: Any) -> None:
    made = new_key(town, user_id="ann", serving={"models": ["tiny"], "requests_per_minute": 60})
    kept = town.servers["consensus"].keys[made["id"]]
    assert (kept["roles"], kept["tenant"], kept["user_id"]) == (["user"], "default", "ann")
    limits = {"models": ["tiny"], "requests_per_minute": 60, "tokens_per_minute": 0, "tokens_per_month": 0}
    limits["requests_per_month"] = 0
    assert kept["serving"] == limits
    assert town.http("GET", "/api/keys").json["keys"][-1]["serving"] == limits
    for path in ("/api/members", "/api/keys", "/api/jobs"):
        with pytest.raises(NotAllowed, match="for models alone"):
            afar(made["key"], lambda http, path=path: http.get(path))
    assert town.http("POST", "/api/keys", json={"user_id": "ann", "role": "admin", "serving": {}}).status == 400
    for wrong in ({"models": [""]}, {"requests_per_minute": -1}, {"else": 1}):
        assert town.http("POST", "/api/keys", json={"user_id": "ann", "serving": wrong}).status == 400


@pytest.mark.parametrize("change", ["other secret", "other id", "of two parts", "expired", "prefix"])
def test_a_key_that_is_not_right_opens_nothing(town: Any, afar: Any, change: str) -> None:
    key = new_key(town)["key"]
    prefix, key_id, secret = key.split(".")
    wrong = {
        "other secret": f"{prefix}.{key_id}.{secret[::-1]}",
        "other id": f"{prefix}.{key_id[::-1]}.{secret}",
        "of two parts": f"{prefix}.{key_id}",
        "expired": key,
        "prefix": f"agk2.{key_id}.{secret}",
    }[change]
    if change == "expired":
        record = town.servers["consensus"].keys[key_id]
        town.servers["consensus"].apply("api_key", key_id, {**record, "expires_at": time.time() - 1})
        town.until(lambda: town.gateway._ledger.api_keys[key_id]["expires_at"] < time.time())
    with pytest.raises(WrongToken):
        afar(wrong, lambda http: http.get("/api/members"))


def test_a_client_of_another_cluster_says_nothing_to_this_one(town: Any, afar: Any) -> None:
    with pytest.raises(CertificateRefused):
        afar("secret", lambda http: http.get("/api/members"), wanted="0" * 64)
    assert town.http("GET", "/api/members").json["here"] == "h1"
    assert town.gateway._gate.refused_total == 0


def shown_by(town: Any) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def shake() -> bytes:
        with socket.create_connection(("127.0.0.1", town.host.enrolment.https_port), 10) as plain:
            with context.wrap_socket(plain) as connection:
                assert connection.version() == "TLSv1.3"
                return connection.getpeercert(binary_form=True) or b""

    async def call() -> bytes:
        return await town.client.loop.run_in_executor(None, shake)  # type: ignore[no-any-return]

    shown: bytes = town.run(call())
    return shown


def test_a_renewed_certificate_is_shown_without_a_restart(town: Any) -> None:
    folder = town.host.paths.security_dir
    before = shown_by(town)
    store_material(folder, CLUSTER.host("h1", ("127.0.0.1",)))
    certificate = town.gateway._app.certificate
    town.gateway._look(certificate)
    after = shown_by(town)
    assert before != after and not certificate.look()
    (folder / HOST_FILE).write_bytes(b"damaged")
    town.gateway._look(certificate)
    assert shown_by(town) == after


def test_a_host_without_a_certificate_has_no_door_for_others(tmp_path: Any) -> None:
    with pytest.raises(ActorGridError, match="no certificate"):
        Certificate(tmp_path)


def test_who_does_not_shake_hands_costs_a_bounded_amount(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    door = town.gateway._thread._secured
    monkeypatch.setattr(tls_listener, "HANDSHAKE_S", 0.5)
    place = ("127.0.0.1", town.host.enrolment.https_port)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(place, 10)) for _ in range(20)]
        # Eight are waited for, the others are hung up on; and then the eight are, too.
        town.until(lambda: door.refused_total == 20)
        assert [connection.recv(1) for connection in silent] == [b""] * 20
    with socket.create_connection(place, 10) as garbage:
        garbage.sendall(b"GET / HTTP/1.1\r\n" + os.urandom(4000))
        town.until(lambda: door.refused_total == 21)
    assert shown_by(town)


def test_a_restart_of_this_host_goes_to_its_supervisor_and_of_another_over_the_link(town: Any, afar: Any) -> None:
    key = new_key(town, user_id="ann")
    answer = afar(key["key"], lambda http: http.post("/api/hosts/h1/restart", {}))
    assert answer == {"host_id": "h1", "incarnation": 1}
    assert town.servers["host"].restarted_by == f"ann (key {key['id']})"
    with pytest.raises(NotFound, match="actorgrid hosts"):
        afar(key["key"], lambda http: http.post("/api/hosts/nobody/restart", {}))
    member = {"host_id": "h2", "node": 2, "addresses": {"https": "10.0.0.2:7400"}, "version": "", "joined_at": 1.0}
    town.servers["consensus"].apply("member", "h2", member)
    town.until(lambda: "h2" in town.gateway._ledger.members)
    with pytest.raises(ActorGridError, match="h2 cannot be reached; asked: restart"):
        afar(key["key"], lambda http: http.post("/api/hosts/h2/restart", {}))
    (shown,) = afar(key["key"], lambda http: http.get("/api/members"))["members"]
    assert (shown["url"], shown["present"]) == ("https://10.0.0.2:7400", True)
