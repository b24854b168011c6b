"""Answers about the members of a cluster, and about its sites."""

from __future__ import annotations

from actorgrid.models import AnswerBody


class SiteHosts(AnswerBody):
    """The hosts of a site: how many there are, how many of them are there, and how many vote on the ledger."""

    hosts: int
    present: int
    voters: int


class ClusterMember(AnswerBody):
    """A host of the cluster, its site, and where clients reach it; ``present``: as far as who answers knows."""

    host_id: str
    node: int
    url: str | None
    version: str
    present: bool
    site: str | None = None


class MembersAnswer(AnswerBody):
    """All hosts of the cluster; none when the host is alone. ``ca_fingerprint``: by what clients know it."""

    cluster_id: str | None
    ca_fingerprint: str | None
    here: str
    leader: str | None
    members: list[ClusterMember]
