"""Who is told: targets as people write them, the operator's file, and addresses that are out of bounds."""

from __future__ import annotations

import base64
import ipaddress
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.notifications.allowed_addresses import networks_of, refusal
from actorgrid.actors.notifications.destinations import Destination, parsed, read_operator_file
from actorgrid.actors.notifications.outgoing import LINE_CHARS_MAX, OutgoingMessage, one_line
from actorgrid.actors.notifications.signature import key_bytes, signed_headers
from actorgrid.errors import KeyExposed, MalformedConfig, TargetNotAllowed, UnknownTarget
from actorgrid.notification_words import ENDS, checked_targets, events_of, shown_target, target_fault

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize(
    "target",
    ["ops", "webhook:https://example.org/a?b=c", "webhook:http://10.0.0.1:8065/hooks/x", "mail:ann+x@mail.example.org"],
)
def test_what_is_a_target(target: str) -> None:
    assert target_fault(target) == ""


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("", "no target"),
        ("-x", "no target"),
        ("a b", "no target"),
        ("https://example.org/", "did you mean webhook:https://example.org/"),
        ("slack:x", "no kind of target"),
        ("desktop", "command that waits"),
        ("webhook:ftp://example.org/", "https://HOST/PATH"),
        ("webhook:https:///x", "https://HOST/PATH"),
        ("webhook:https://ann:pw@example.org/", "named target"),
        ("webhook:https://example.org/a b", "%XX"),
        ("webhook:https://exam\nple.org/", "%XX"),
        ("webhook:https://example.org:99999/", "no address"),
        ("webhook:https://[::1/", "no address"),
        ("webhook:https://exämple.org/", "ASCII"),
        ("mail:-oQ/tmp@example.org", "no mail address"),
        ("mail:ann", "no mail address"),
        ("mail:a@b@c", "no mail address"),
        ("mail:ann@example.org\nBcc: x@y", "no mail address"),
        ("webhook:https://example.org/" + "x" * 2_000, "too long"),
    ],
)
def test_what_is_no_target_is_said_with_what_to_write(target: str, word: str) -> None:
    assert word in target_fault(target)
    with pytest.raises(ValueError, match=r"."):
        checked_targets([target])


def test_events_by_their_names() -> None:
    assert events_of(["failed, lost", "started"]) == ["failed", "lost", "started"]
    assert events_of(["ended"]) == list(ENDS)
    with pytest.raises(ValueError, match="'done' is nothing a job tells of"):
        events_of(["done"])


def test_an_address_is_shown_by_its_host_alone() -> None:
    assert (
        shown_target("webhook:https://hooks.example.org:8443/services/T0/secret")
        == "webhook:https://hooks.example.org:8443"
    )
    assert shown_target("ops") == "ops"
    for odd in ("webhook:http://[/secret", "webhook:http://a:99999/secret"):
        assert shown_target(odd) == "webhook:?"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "0.0.0.0",
        "::",
        "169.254.169.254",
        "fe80::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "192.0.2.1",
        "240.0.0.1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "fec0::1",
        "64:ff9b:1::7f00:1",
        "64:ff9b::a83f:8110",
        "168.63.129.16",
        "192.0.0.192",
    ],
)
def test_a_user_does_not_reach_what_is_not_the_public_internet(address: str) -> None:
    said = refusal(ipaddress.ip_address(address), ())
    assert str(ipaddress.ip_address(address)) in said and "notifications.allowed_networks" in said


def test_public_addresses_and_what_the_operator_allows_are_reached() -> None:
    assert refusal(ipaddress.ip_address("93.184.216.34"), ()) == ""
    assert refusal(ipaddress.ip_address("2606:2800:220:1::1"), ()) == ""
    allowed = networks_of(["10.0.0.0/8", "127.0.0.1/32"])
    assert refusal(ipaddress.ip_address("10.9.9.9"), allowed) == ""
    assert refusal(ipaddress.ip_address("::ffff:10.9.9.9"), allowed) == ""
    assert refusal(ipaddress.ip_address("127.0.0.1"), allowed) == ""
    assert refusal(ipaddress.ip_address("127.0.0.2"), allowed) != ""
    assert refusal(ipaddress.ip_address("192.168.0.1"), allowed) != ""


def test_signatures_are_those_of_the_specification() -> None:
    """The example of the specification's reference libraries."""
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [KEY])
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    other = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    both = signed_headers("m", 1, b"x", [KEY, other])["webhook-signature"].split(" ")
    assert len(both) == 2 and all(each.startswith("v1,") for each in both)
    assert "webhook-signature" not in signed_headers("m", 1, b"x", [])


@pytest.mark.parametrize("text", ["", "x", "whsec_", "whsec_!!", "whsec_c2hvcnQ=", "whsec_" + "A" * 200])
def test_a_weak_key_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="a signing key is"):
        key_bytes(text)


def test_a_line_holds_nothing_that_a_terminal_or_a_header_takes_for_more() -> None:
    assert one_line("a\r\nBcc: x\x1b[2J") == "a  Bcc: x [2J"
    assert len(one_line("x" * 1_000)) == LINE_CHARS_MAX
    body = OutgoingMessage("m", "job.failed", -5.0, "text \udcff", {"a": None}).body()
    assert body.startswith(b'{"type":"job.failed","timestamp":"1970-01-01T00:00:00Z"')


FILE = f"""
mail_command: [/usr/sbin/sendmail, -i, "{{to}}"]
mail_from: cluster@example.org
key: {KEY}
targets:
  ops: {{webhook: "https://hooks.example.org/services/secret", key: [{KEY}]}}
  local: {{webhook: "http://127.0.0.1:8065/hooks/x"}}
  oncall: {{mail: oncall@example.org}}
"""


def test_the_operators_file_names_targets_keys_and_the_mail_command(tmp_path: Path) -> None:
    path = tmp_path / "notifications.yaml"
    assert read_operator_file(path).named == {}
    path.write_text(FILE)
    path.chmod(0o600)
    operator = read_operator_file(path)
    assert operator.destination("ops") == Destination("https://hooks.example.org/services/secret", "", (KEY,), True)
    assert operator.destination("oncall").mail_to == "oncall@example.org"
    assert operator.destination("webhook:https://x.example/") == Destination("https://x.example/", "", (KEY,), False)
    assert operator.destination("mail:ann@example.org").mail_to == "ann@example.org"
    with pytest.raises(UnknownTarget, match="'nobody'") as caught:
        operator.destination("nobody")
    assert caught.value.found == "local, oncall, ops"
    with pytest.raises(TargetNotAllowed):
        parsed({}).destination("mail:ann@example.org")


def test_a_file_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "notifications.yaml"
    path.write_text(FILE)
    path.chmod(0o640)
    with pytest.raises(KeyExposed, match="others than the agent"):
        read_operator_file(path)
    path.chmod(0o600)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    with pytest.raises(MalformedConfig):
        read_operator_file(link)


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"target": {}},
        {"targets": [1]},
        {"targets": {"x": {}}},
        {"targets": {"x": {"webhook": "https://a/", "mail": "a@b"}}},
        {"targets": {"x": {"webhook": "https://user:secret@a/"}}},
        {"targets": {"x": {"mail": "-f@x y"}}},
        {"targets": {"x:y": {"mail": "a@b"}}},
        {"targets": {"desktop": {"mail": "a@b"}}},
        {"targets": {"x": {"webhook": "https://a/", "key": "short"}}},
        {"targets": {"x": {"webhook": "https://a/", "keys": []}}},
        {"mail_command": "sendmail -i"},
        {"mail_command": [1]},
        {"key": [KEY] * 5},
    ],
)
def test_a_wrong_file_is_refused_without_its_secrets(said: Any) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parsed(said or ["x"])
    assert "secret" not in str(caught.value)
