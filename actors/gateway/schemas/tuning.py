"""What the routes of tuning take and give."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody


class FindingView(AnswerBody):
    """What is slow on a host, and which setting to change."""

    name: str = Field(max_length=64)
    host: str = Field(max_length=253)
    what: str = Field(max_length=500)
    evidence: str = Field(max_length=500, description="the figures it goes by")
    setting: str = Field(max_length=200, description="empty: no setting helps, and effect says what does")
    now: Any
    to: float | int | str | None
    live: bool = Field(description="whether it is changed while hosts run; else by a file, for the next start")
    effect: str = Field(max_length=500, description="what is expected of it")


class TuningChange(AnswerBody):
    """A setting that was changed for a finding."""

    name: str = Field(max_length=64)
    setting: str = Field(max_length=200)
    before: Any
    after: Any
    at: float
    by: str = Field(max_length=200)


class TuningAnswer(AnswerBody):
    """What all hosts that answer find slow, and what was changed for that and not undone."""

    findings: list[FindingView]
    applied: list[TuningChange]
    unheard: list[str] = Field(description="hosts that did not answer")
    problems: list[str] = Field(description="why nobody looks, by host")


class TuningRequest(RequestBody):
    """The findings whose settings are to be changed, or changed back; none: all that can be."""

    names: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=64)


class TuningChanged(AnswerBody):
    """The settings that were changed, and those that were not, with the reason."""

    changed: list[TuningChange]
    kept: dict[str, str]
