"""The settings of logs, heartbeats, and of what is sent to collectors of OpenTelemetry."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from .section import ByteCount, Section, setting

SECRET_IN_URL = "secret_in_url"
"""The type of a problem whose value is not shown."""


def collector(url: str) -> str:
    """*url* when it names a collector and no secret: settings are shown and logged. Empty: none."""
    if not url:
        return url
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        named = False
    if not named or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise PydanticCustomError("no_collector", "no URL of a collector; write one like http://127.0.0.1:4318")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise PydanticCustomError(
            SECRET_IN_URL,
            "no user, password or query in it: settings are shown and logged; give the agent "
            "OTEL_EXPORTER_OTLP_HEADERS in its environment instead, like authorization=Bearer%20TOKEN",
        )
    return url


def is_bare(url: str) -> bool:
    """Whether what is sent to *url* crosses a network as plain text."""
    import ipaddress

    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        inside = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    return parts.scheme == "http" and not inside


Collector = Annotated[str, AfterValidator(collector)]


class MonitoringSection(Section):
    """Logs and figures about the agent itself."""

    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least severe level logged", live=True)
    log_max_bytes: ByteCount = setting(16 * 2**20, "agent.log is rotated at this size, three older ones are kept")
    beat_interval_s: float = setting(1.0, "time between heartbeats of the agent's processes", ge=0.1, le=60)
    otlp_endpoint: Collector = setting(
        "",
        "collector that is sent spans of jobs by OTLP over HTTP, as http://127.0.0.1:4318; empty: none are made",
        max_length=1000,
    )
    otlp_metrics_endpoint: Collector = setting(
        "",
        "collector that is sent readings of GPUs by OTLP over HTTP, as hw.gpu metrics; empty: none are sent",
        max_length=1000,
    )
    otlp_metrics_interval_s: float = setting(30.0, "time between samples that are sent there", ge=1, le=3600)
    otlp_plain_http: bool = setting(
        False, "send to collectors on other machines without TLS: names of jobs and users can be read on the way"
    )
    hang_margin_s: float = setting(
        2.0, "time beyond what a server declared for a handler until it is taken for hung and killed", ge=0.1, le=600
    )

    @model_validator(mode="after")
    def _collectors_are_reached_safely(self) -> MonitoringSection:
        for key in ("otlp_endpoint", "otlp_metrics_endpoint"):
            url: str = getattr(self, key)
            if url and is_bare(url) and not self.otlp_plain_http:
                raise PydanticCustomError(
                    "plain_http",
                    "{key} ({url}) is on another machine, and http is plain text: use https, a collector of this "
                    "machine that sends it on, or otlp_plain_http: true",
                    {"key": key, "url": url},
                )
        return self

    @model_validator(mode="after")
    def _margin_covers_a_beat(self) -> MonitoringSection:
        # A pause of the host too short to be seen as one may cost a whole interval.
        if self.hang_margin_s < self.beat_interval_s:
            raise PydanticCustomError(
                "inconsistent",
                "hang_margin_s ({margin}) is less than beat_interval_s ({interval})",
                {"key": "hang_margin_s", "margin": self.hang_margin_s, "interval": self.beat_interval_s},
            )
        return self
