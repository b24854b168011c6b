"""Whether a command's container could not be run, by its runtime's exit status and words. Decisions only."""

from __future__ import annotations

from actorgrid.errors import ContainerFailed

from .work_records import WorkSpec

RUNTIME_FAILED = {"podman": 125, "docker": 125, "apptainer": 255}
"""The exit status by which a runtime says that it, and not the command, has failed."""


def failure_of_runtime(spec: WorkSpec, exit_code: int | None, stderr: str) -> ContainerFailed | None:
    """The error of a command whose container could not be made; ``None`` when it was the command that failed."""
    host = spec.get("container")
    if not host or exit_code is None:
        return None
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    marks = {"podman": "Error:", "docker": "docker:", "apptainer": "FATAL:"}
    for name, status in RUNTIME_FAILED.items():
        said = [line for line in lines if line.startswith(marks[name])]
        if exit_code == status and said:
            text = said[-1]
            lower = text.lower()
            absent = any(word in lower for word in ("manifest unknown", "not known", "short-name", "pull", "image"))
            return ContainerFailed(
                f"{name} cannot run the container" + (": the image is not to be had" if absent else ""),
                asked=str(host["wish"]["image"]),
                found=text[:1000],
                hint=f"try it on that host: {name} pull {host['wish']['image']}" if absent else "",
            )
    return None
