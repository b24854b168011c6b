"""Whether a command's container could not be run, by its runtime's exit status and words. Decisions only."""

from __future__ import annotations

from actorgrid.errors import ContainerFailed

from .work_records import WorkSpec

RUNTIME_FAILED = {"podman": 125, "docker": 125, "apptainer": 255}
"""The exit status by which a runtime says that it, and not the command, has failed."""
PODMAN_WITHOUT_DEVICE = 126
"""What Podman leaves with where nothing on the host says what the device is that it is to hand on."""
_OF_IMAGES = (
    "manifest unknown",
    "not known",
    "short-name",
    "pull",
    "image",
    "initializing source",
    "container registry",
    "repository",
)
_OF_DEVICES = ("cdi device", "/dev/kfd", "/dev/dri", "device driver", "nvidia-container")


def failure_of_runtime(spec: WorkSpec, exit_code: int | None, stderr: str) -> ContainerFailed | None:
    """The error of a command whose container could not be made; ``None`` when it was the command that failed."""
    host = spec.get("container")
    if not host or exit_code is None:
        return None
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    marks = {"podman": "Error:", "docker": "docker:", "apptainer": "FATAL:"}
    for name, status in RUNTIME_FAILED.items():
        said = [line for line in lines if line.startswith(marks[name])]
        text = said[-1] if said else ""
        lower = text.lower()
        no_device = any(word in lower for word in _OF_DEVICES)
        own = exit_code == status or (name == "podman" and exit_code == PODMAN_WITHOUT_DEVICE and no_device)
        if not own or not said:
            continue
        absent = not no_device and any(word in lower for word in _OF_IMAGES)
        why = ": its GPU cannot be handed on" if no_device else ": the image is not to be had" if absent else ""
        hint = f"try it on that host: {name} pull {host['wish']['image']}" if absent else ""
        if no_device:
            hint = (
                "NVIDIA's need its container toolkit on that host (Podman: nvidia-ctk cdi generate"
                " --output=/etc/cdi/nvidia.yaml), AMD's and Intel's their driver's files in /dev"
            )
        image = str(host["wish"]["image"])
        return ContainerFailed(f"{name} cannot run the container{why}", asked=image, found=text[:1000], hint=hint)
    return None
