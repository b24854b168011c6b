"""What is asked and answered about the cluster's trust."""

from __future__ import annotations

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody


class TrustedAuthority(AnswerBody):
    """One generation of the cluster's authority. ``holders``: the hosts that have its key."""

    generation: int
    state: str = Field(description="waiting, signing or accepted")
    fingerprint: str
    valid_until: float
    holders: list[str]


class MemberTrust(AnswerBody):
    """What a member carries; ``generation`` and ``valid_until`` are of its certificate, ``None`` until it has told."""

    node_id: str
    node: int
    generation: int | None
    valid_until: float | None
    bundle_version: int
    keys: list[int]
    asks: bool


class Rotation(AnswerBody):
    """A rotation under way: its next step (switch or retire; empty: none is), and for which hosts it waits."""

    next: str
    waits_for: list[str]


class TrustAnswer(AnswerBody):
    """The cluster's trust; nothing in it is secret. ``fingerprint`` is that of the authority that issues."""

    cluster_id: str
    version: int
    fingerprint: str
    rotation_due: bool
    authorities: list[TrustedAuthority]
    rotation: Rotation
    hosts: list[MemberTrust]


class RotationRequest(RequestBody):
    """``call_off``: give up a rotation that has not come to its switch."""

    call_off: bool = False


class RotationBegun(AnswerBody):
    """The generation that was introduced, or called off."""

    generation: int
    fingerprint: str


class RenewalRequest(RequestBody):
    """``new_key``: a certificate for a new key, not only another one for the same."""

    new_key: bool = False


class RenewalAsked(AnswerBody):
    """Asked for; ``valid_until`` is of the certificate that the host has now."""

    valid_until: float
