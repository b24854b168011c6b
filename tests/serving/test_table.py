"""What goes between the agent and the model gateways is checked on both sides, and comes out as it went in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from actorgrid.actors.serving import control_frames as frames
from actorgrid.actors.serving.table import (
    TABLE_BYTES_MAX,
    DemandReport,
    LoraAdapter,
    ModelUsage,
    ReplicaEndpoint,
    ReplicaReport,
    ReplicaState,
    RevisionReport,
    RevisionWeight,
    ServiceDemand,
    ServiceKey,
    ServiceRoute,
    ServiceTable,
    decode_report,
    decode_table,
    encode_report,
    encode_table,
)
from actorgrid.errors import BadRequest, MalformedMessage
from actorgrid.transports.frames import FrameDecoder, encode_frame

REPLICA = ReplicaEndpoint("chat-1", "host-a", "j1.1", "r1", ReplicaState.READY, 8000, "10.0.0.1:7405")
ROUTE = ServiceRoute(
    name="chat",
    models=("tiny",),
    replicas=(REPLICA,),
    adapters=(LoraAdapter("tiny-law", "law"),),
    revisions=(RevisionWeight("r1", 90), RevisionWeight("r2", 10)),
    fallback_models=("other",),
)
KEY = ServiceKey("abc", "0" * 64, "ada", models=("tiny",), requests_per_minute=60)
TABLE = ServiceTable(7, "host-a", (ROUTE,), (KEY,), members=("host-a", "host-b"))
REPORT = DemandReport(
    7,
    (
        ServiceDemand(
            "chat", 3, 1, 0.5, 10, 1, 1e9, (ReplicaReport("chat-1", "j1.1", 3, 10, 1, False),),
            (RevisionReport("r1", 10, 1, 0.1, 0.4),),
        ),
    ),
    (ModelUsage("abc", "ada", "", "chat", "tiny", 10, 1, 100, 50, 30, 5),),
)  # fmt: skip


def test_a_table_and_a_report_come_out_as_they_went_in() -> None:
    assert decode_table(encode_table(TABLE)) == TABLE
    assert decode_report(encode_report(REPORT)) == REPORT


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"sequence": -1}, "sequence"),
        ({"version": 2}, "version"),
        ({"services": [{"name": "a", "models": []}]}, "services.0.models"),
        ({"services": [{"name": "a", "models": ["m"], "strategy": "luck"}]}, "services.0.strategy"),
        ({"services": [{"name": "a", "models": ["m\n"]}]}, "services.0.models.0"),
        ({"services": [{"name": "a", "models": ["m"], "revisions": [{"revision": "r", "percent": 60}]}]}, "services.0"),
        ({"services": [{"name": "a", "models": ["m"]}, {"name": "b", "models": ["m"]}]}, ""),
        ({"services": [{"name": "a", "models": ["m"], "timeouts": {"idle_s": "NaN"}}]}, "services.0.timeouts.idle_s"),
        ({"keys": [{"key_id": "k", "sha256": "x", "user": "u"}]}, "keys.0.sha256"),
    ],
)
def test_a_table_that_is_not_as_it_should_be_is_refused_with_its_place(change: dict[str, Any], where: str) -> None:
    plain = {**json.loads(encode_table(TABLE)), **change}
    with pytest.raises(MalformedMessage) as caught:
        decode_table(json.dumps(plain).encode())
    assert (caught.value.asked or "").startswith(where)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (TABLE_BYTES_MAX + 1)])
def test_what_is_no_table_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_table(text)
    with pytest.raises(MalformedMessage):
        decode_report(text)


def test_a_table_that_is_too_large_is_not_sent() -> None:
    routes = tuple(replace(ROUTE, name=f"s{at}", models=(f"m{at}",), adapters=(), reason="x" * 2000) for at in range(9))
    many = tuple(
        replace(REPLICA, replica_id=f"{at}" * 50, gateway="g" * 300, attempt="a" * 253, host="h" * 253)
        for at in range(1000, 2800)
    )
    with pytest.raises(BadRequest, match="too large"):
        encode_table(ServiceTable(1, "host-a", tuple(replace(each, replicas=many) for each in routes)))


@pytest.mark.parametrize(
    "message",
    [frames.AgentHello(1), frames.UseTable(b"{}"), frames.StopGateway(2.0)],
)
def test_what_the_agent_says_is_read_by_the_gateway(message: frames.FromAgent) -> None:
    (frame,) = FrameDecoder().feed(encode_frame(frames.frame_of(message)))
    assert frames.parse_from_agent(frame) == message


@pytest.mark.parametrize(
    "message",
    [
        frames.GatewayHello(1, 99, "127.0.0.1:7404", ""),
        frames.GatewayReport(b"{}"),
        frames.WakeService("chat"),
        frames.TableRefused("why"),
    ],
)
def test_what_the_gateway_says_is_read_by_the_agent(message: frames.FromGateway) -> None:
    (frame,) = FrameDecoder().feed(encode_frame(frames.frame_of(message)))
    assert frames.parse_from_gateway(frame) == message


@pytest.mark.parametrize(
    "frame",
    [["hello"], ["hello", "1"], ["table", "text"], ["stop", -1], ["stop", float("nan")], ["wake", ""], ["else", 1]],
)
def test_other_frames_are_refused_by_both(frame: list[Any]) -> None:
    for parse in (frames.parse_from_agent, frames.parse_from_gateway):
        with pytest.raises(MalformedMessage):
            parse(frame)
