"""Spans, sent to a real receiver of OTLP on loopback; and what becomes of them where there is none."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from actorgrid.configs.schema import Settings
from actorgrid.supervisors import otlp_sender, span_sender
from actorgrid.supervisors.span_sender import SpanFacts, SpanSender, sender_for
from actorgrid.trace_context import TraceContext
from tests.otlp_receiver import OtlpReceiver

LOG = logging.getLogger("test")
PLACE = TraceContext("ab" * 16, "cd" * 8)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_sender, "END_S", 60.0)
    monkeypatch.setattr(otlp_sender, "GATHER_S", 0.05)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    made = OtlpReceiver()
    yield made
    made.close()


def span(name: str = "run", place: TraceContext = PLACE, **fields: Any) -> SpanFacts:
    return SpanFacts(name, place, fields.pop("parent", "ef" * 8), 1_700_000_000.25, 1_700_000_001.5, **fields)


def test_a_span_arrives_as_it_was_told(receiver: OtlpReceiver) -> None:
    sender = SpanSender(receiver.url + "/", {"service.name": "actorgrid", "host.id": "h1"}, LOG)
    sender.send(span(attributes={"actorgrid.job.id": "j", "n": 3}, error="left with 3"))
    sender.send(span("submit", PLACE.below("submit", "j"), parent=""))
    found = receiver.wait_for("run", "submit")
    sender.close()
    run = found["run"]
    assert (run.trace_id, run.span_id, run.parent_id) == ("ab" * 16, "cd" * 8, "ef" * 8)
    assert (run.began_ns, run.ended_ns) == (1_700_000_000_250_000_000, 1_700_000_001_500_000_000)
    assert run.failed and run.attributes == {"actorgrid.job.id": "j", "n": 3} and run.resource["host.id"] == "h1"
    assert found["submit"].parent_id == "" and not found["submit"].failed
    assert sender.figures() == {"spans_sent_total": 2.0, "spans_dropped_total": 0.0}


def test_what_is_not_sampled_is_not_sent(receiver: OtlpReceiver) -> None:
    sender = SpanSender(receiver.url, {}, LOG)
    sender.send(span("not", TraceContext("ab" * 16, "cd" * 8, sampled=False)))
    sender.send(span("sent"))
    receiver.wait_for("sent")
    sender.close()
    assert [each.name for each in receiver.spans] == ["sent"]


def test_what_finds_no_room_is_dropped_and_counted_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_sender, "QUEUE_MAX", 3)
    monkeypatch.setattr(SpanSender, "_run", lambda _self: None)
    sender = SpanSender("http://127.0.0.1:9", {}, LOG)
    for _ in range(5):
        sender.send(span())
    assert sender.dropped_total == 2


def test_a_collector_that_refuses_costs_its_batch_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    refusing = OtlpReceiver(status=400)
    sender = SpanSender(refusing.url, {}, LOG)
    sender.send(span())
    refusing.wait_for("run")
    sender.close()
    refusing.close()
    assert (sender.sent_total, sender.dropped_total) == (0, 1)
    assert "1 spans are dropped" in caplog.text


def test_without_the_extra_spans_are_dropped_and_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    sender = SpanSender("http://127.0.0.1:9", {}, LOG)
    sender.send(span())
    sender.close()
    assert sender.dropped_total == 1 and "actorgrid[otel]" in caplog.text


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_EXPORTER_OTLP_COMPRESSION", "none of these"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")]
)
def test_a_variable_that_opentelemetry_refuses_is_told_and_what_comes_is_counted(
    receiver: OtlpReceiver,
    variable: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(variable, value)
    sender = SpanSender(receiver.url, {}, LOG)
    sender.send(span())
    sender.close()
    if sender.sent_total:  # a version that passes it over
        return
    sender._thread.join(60) if sender._thread else None
    assert sender.dropped_total == 1 and sender.fault and "spans are dropped" in caplog.text


def test_what_a_library_comes_up_with_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def export(self, batch: object) -> str:
            raise RuntimeError("no such proxy")

    sender: otlp_sender.OtlpSender[int] = otlp_sender.OtlpSender("numbers", "x", Odd, LOG, queue_max=4, batch_max=1)
    sender.put(1)
    sender.put(2)
    sender.close()
    assert sender._thread is not None
    sender._thread.join(60)
    assert (sender.dropped_total, sender.fault) == (2, "RuntimeError: no such proxy")


def test_the_end_is_not_held_up_by_a_collector_that_did_not_take_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = threading.Event(), threading.Event()

    class Hangs:
        def export(self, batch: object) -> str:
            asked.set()
            assert go_on.wait(60)
            return "it hangs"

    sender: otlp_sender.OtlpSender[int] = otlp_sender.OtlpSender("numbers", "x", Hangs, LOG, queue_max=4, batch_max=1)
    sender.put(1)
    assert asked.wait(60)
    sender.fault = "it did not take the last"
    sender.close()  # would wait for END_S, a minute here
    assert sender._thread is not None and sender._thread.is_alive()
    go_on.set()
    sender._thread.join(60)


def test_of_samples_the_newest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_sender.OtlpSender, "_run", lambda _self: None)
    sender: otlp_sender.OtlpSender[int] = otlp_sender.OtlpSender(
        "samples",
        "x",
        lambda: None,
        LOG,
        queue_max=1,
        batch_max=1,
        newest=True,  # type: ignore[arg-type,return-value]
    )
    for number in range(4):
        sender.put(number)
    assert (list(sender._queue), sender.dropped_total) == ([3], 3)


def test_there_is_one_only_where_a_collector_is_set() -> None:
    host = SimpleNamespace(settings=Settings(), host_id="h1", hostname="box")
    assert sender_for(host) is None
    host.settings.monitoring.otlp_endpoint = "http://127.0.0.1:4318"
    assert isinstance(sender_for(host), SpanSender)


def test_servers_that_trace_nothing_load_nothing_of_opentelemetry() -> None:
    program = (
        "import sys, actorgrid.actors.gateway.actor, actorgrid.actors.gpu.coordinator, actorgrid.actors.work.manager\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
