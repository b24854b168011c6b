"""W3C's traceparent: what is one, what is passed over, and the ids of what comes below."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.client.current_trace import current_traceparent
from actorgrid.trace_context import TraceContext, is_traceparent, read_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_what_is_written_is_read_again() -> None:
    for sampled in (True, False):
        place = TraceContext(TRACE, SPAN, sampled)
        assert read_traceparent(place.to_text()) == place and is_traceparent(place.to_text())
    assert TraceContext(TRACE, SPAN).to_text() == f"00-{TRACE}-{SPAN}-01"


def test_of_a_later_version_what_is_known_is_read() -> None:
    assert read_traceparent(f"01-{TRACE}-{SPAN}-03-more") == TraceContext(TRACE, SPAN, True)
    assert not is_traceparent(f"01-{TRACE}-{SPAN}-01")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        5,
        [f"00-{TRACE}-{SPAN}-01"],
    ],
)
def test_what_is_no_traceparent_is_passed_over(text: object) -> None:
    assert read_traceparent(text) is None and not is_traceparent(text)


@given(st.text(max_size=80))
def test_whatever_comes_is_read_or_passed_over(text: str) -> None:
    found = read_traceparent(text)
    assert found is None or read_traceparent(found.to_text()) == found


def test_ids_below_are_the_same_whoever_asks_and_differ_by_name_and_subject() -> None:
    place = TraceContext(TRACE, SPAN, sampled=False)
    assert place.below("run", "j.1") == TraceContext(TRACE, SPAN, False).below("run", "j.1")
    ids = {place.below(name, subject).span_id for name in ("run", "start") for subject in ("j.1", "j.2")}
    assert len(ids) == 4 and not place.below("run", "j.1").sampled


def test_a_client_goes_on_with_the_trace_of_its_environment_or_of_its_opentelemetry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRACEPARENT", raising=False)
    assert current_traceparent() == ""
    monkeypatch.setenv("TRACEPARENT", "rubbish")
    assert current_traceparent() == ""
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{SPAN}-01")
    assert current_traceparent() == f"00-{TRACE}-{SPAN}-01"
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider().get_tracer("test").start_as_current_span("own") as own:
        here = own.get_span_context()
        assert current_traceparent() == f"00-{here.trace_id:032x}-{here.span_id:016x}-01"
