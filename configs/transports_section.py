"""The settings of fast paths between processes and hosts."""

from __future__ import annotations

from .section import Section, setting


class TransportsSection(Section):
    """Fast paths between hosts, beside their links over mutual TLS."""

    rdma: bool = setting(
        False,
        "read objects of other hosts over RDMA, where they have it on, too. What goes over it is neither encrypted "
        "nor signed: only in a network that nobody else is in",
    )
    rdma_device: str = setting("", "RDMA device, as `rdma link` names it; empty: the first", max_length=64)
    rdma_gid_index: int = setting(
        -1, "index of the device's address; -1: that of RoCE v2 with an IPv4 address", ge=-1, le=255
    )
