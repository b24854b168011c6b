"""What ``doctor`` says of RDMA between hosts."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from actorgrid.errors import ActorGridError

from .checks import Finding

LOCKED_BYTES_MIN = 160 * 2**20
"""What an agent locks for RDMA at most: its slots, what peers fetch and what lands (docs/rdma.md)."""
OFF = "off: transports.rdma is false"


def check_rdma(wanted: bool, device: str = "") -> Iterator[Finding]:
    """Check what RDMA needs; nothing of it is a problem where it is not *wanted*."""
    bad = "problem" if wanted else "note"
    from actorgrid.transports.rdma.verbs import device_names

    try:
        names = device_names()
    except ActorGridError as error:
        # Most machines have none, and need none: that is worth no line of its own unless it was asked for.
        text = f"unavailable: {error.found or error.message}"
        hint = "install the distribution's python3-pyverbs, and have this Python find it: docs/rdma.md"
        yield Finding("rdma", "problem", text, hint) if wanted else Finding("rdma", "ok", f"{OFF} ({text})")
        return
    if not names or (device and device not in names):
        text = f"unavailable: no RDMA device{f' {device} among {names}' if device and names else ''}"
        yield Finding("rdma", "problem" if wanted else "ok", text if wanted else f"{OFF} ({text})", _see(wanted))
        return
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked != resource.RLIM_INFINITY and locked < LOCKED_BYTES_MIN:
        text = f"may lock {locked} bytes of memory, and RDMA locks up to {LOCKED_BYTES_MIN}"
        yield Finding("rdma", bad, text, "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)")  # type: ignore[arg-type]
        return
    yield Finding("rdma", "ok", f"{'on' if wanted else OFF}; devices: {', '.join(names)}")


def _see(wanted: bool) -> str:
    return "see `rdma link`, and transports.rdma_device" if wanted else ""
