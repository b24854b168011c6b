"""The place in a trace that this process is at: of its OpenTelemetry, where it uses that, else of its environment."""

from __future__ import annotations

import os
import sys

from actorgrid.trace_context import VARIABLE, TraceContext, read_traceparent


def current_traceparent() -> str:
    """It as a ``traceparent``; empty where there is none. Nothing is imported for it."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        here = api.get_current_span().get_span_context()
        if here.is_valid:
            sampled = bool(here.trace_flags & 1)
            return TraceContext(f"{here.trace_id:032x}", f"{here.span_id:016x}", sampled).to_text()
    given = read_traceparent(os.environ.get(VARIABLE))
    return "" if given is None else given.to_text()
