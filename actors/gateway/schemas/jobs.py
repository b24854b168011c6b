"""What the routes of jobs take and give beyond the models of ``actorgrid.models``."""

from __future__ import annotations

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody


class EditRequest(RequestBody):
    """What is to be another of a waiting job; what is not named stays."""

    priority: int = Field(default=50, ge=0, le=100, description="higher is served first")
    max_execution_time_s: float | None = Field(
        default=None, gt=0, le=1e9, description="each attempt is stopped after this long; null: never"
    )


class JobEdited(AnswerBody):
    """What the job has now."""

    job_id: str
    priority: int
    max_execution_time_s: float | None
