"""The settings of the object store (``objects``)."""

from __future__ import annotations

from .section import ByteCount, Section, setting


class ObjectsSection(Section):
    """The object store: large values of sessions, kept on the host where they were made."""

    enabled: bool = setting(True, "whether this host has one; without, values of session tasks have at most 64 MiB")
    memory: ByteCount = setting(0, "what lies in memory at most; 0: 30 % of the machine's, or of its cgroup's limit")
    disk: ByteCount = setting(
        0, "what lies in the data directory at most, when memory is full; 0: half of what is free there at the start"
    )
