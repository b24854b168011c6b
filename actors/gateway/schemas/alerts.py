"""What the routes of alerts take and give."""

from __future__ import annotations

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody


class AlertView(AnswerBody):
    """An alert of one host."""

    alert: str
    severity: str = Field(description="critical or warning")
    state: str = Field(description="pending, firing or resolved")
    host: str
    subject: str = Field(description="the GPU or host that it is about; empty: all of the host, or of the cluster")
    of_cluster: bool = Field(description="told by the host that leads, for all")
    value: float
    since: float
    firing_since: float | None
    told_at: float | None = Field(description="when somebody was told last")
    text: str
    action: str = Field(description="the command to look with, and what is usual")
    silenced_until: float | None
    silenced_by: str | None


class SilenceView(AnswerBody):
    """Of which alerts nobody is told, and until when."""

    silence_id: str
    alert: str
    host: str
    subject: str
    until: float
    by: str
    reason: str
    only_firing_since: float


class AlertsAnswer(AnswerBody):
    """Alerts of all hosts that answer, the worst first."""

    alerts: list[AlertView]
    resolved: list[AlertView] = Field(description="the last ones, newest first")
    silences: list[SilenceView]
    unheard: list[str] = Field(description="hosts that did not answer")
    targets: list[str] = Field(description="who is told, by the settings of the host that was asked")
    problems: list[str] = Field(description="why somebody could not be told, by host")


class SilenceRequest(RequestBody):
    """Of which alerts nobody is to be told; patterns as of a shell."""

    alert: str = Field(default="*", min_length=1, max_length=100)
    host: str = Field(default="*", min_length=1, max_length=253)
    subject: str = Field(default="*", max_length=200)
    for_s: float = Field(gt=0, le=30 * 86_400)
    reason: str = Field(default="", max_length=200)
    firing_only: bool = Field(default=False, description="only what fires now: one that begins later is told of")


class SilenceRemoved(AnswerBody):
    """The silence that is no more."""

    silence_id: str


class AlertTested(AnswerBody):
    """Who is sent a made-up alert."""

    targets: list[str]
