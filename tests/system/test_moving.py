"""A host that comes back elsewhere, late, or twice. Real agents of one machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from actorgrid.actors.security.host_material import WRAP_FILE, HostMaterial, load_material, store_material
from actorgrid.actors.security.keys import ensure_wrap_key, load_authority
from tests.processes import until
from tests.system.cluster_host import ClusterHost, free_base_port, ran_on


def material_of(host: ClusterHost) -> HostMaterial:
    found = load_material(host.data_dir / "security", time.time())
    assert found is not None
    return found


def run_out(host: ClusterHost, issuer: Path) -> None:
    """Give it the certificate that it has, but for its end, which was just now."""
    material = material_of(host)
    authority = load_authority(issuer, material.bundle, 1, ensure_wrap_key(issuer / WRAP_FILE))
    assert authority is not None
    had = material.certificate
    builder = x509.CertificateBuilder().subject_name(had.subject).issuer_name(had.issuer).serial_number(7)
    builder = builder.public_key(had.public_key()).not_valid_before(had.not_valid_before_utc)
    builder = builder.not_valid_after(datetime.fromtimestamp(int(time.time()) - 2, UTC))
    for extension in had.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    ended = builder.sign(authority.key, SHA256())
    store_material(host.data_dir / "security", HostMaterial(material.key, ended, material.bundle))


@pytest.mark.soak  # each of its steps has a test without processes: test_enrolment, test_trust_policy, test_hosts
def test_a_host_moves_runs_out_of_time_and_is_copied(make_host: Callable[..., ClusterHost]) -> None:
    a, b = make_host("a", 0), make_host("b", 1)
    a.found()
    b.join(a, a.token()["token"])
    until(lambda: a.roles() == {1: "leader", 2: "learner"}, "both know both")

    # To another address and other ports: the rest of the cluster learns it, and the certificate follows.
    b.stop()
    b.base_port, b.first = free_base_port(), ["--listen", "127.0.0.2"]
    b.start()
    until(lambda: a.hosts()[2]["ip_address"] == "127.0.0.2", "the first host knows where the second is")
    job = a.ended("--gpus", "1", "--", "true")
    assert (job["state"], ran_on(job)) == ("succeeded", b.hosts()[2]["node_id"])
    until(lambda: material_of(b).addresses == ("127.0.0.2",), "a certificate for the new address")

    # A new key is used while everything goes on.
    before = material_of(b).identity.fingerprint
    b.cli("ca", "renew", "--new-key")
    until(lambda: material_of(b).identity.fingerprint != before, "a new key")
    assert a.ended("--gpus", "1", "--", "true")["state"] == "succeeded"

    # Its certificate runs out while it is off: it joins again, and is known by its key.
    b.stop()
    run_out(b, a.data_dir / "security")
    refused = b.refused_up()
    assert refused["code"] == "CertificateRefused" and "joins again" in refused["hint"], refused
    b.join(a, a.token()["token"])
    assert a.ended("--gpus", "1", "--", "true")["state"] == "succeeded"
    assert a.roles().keys() == {1, 2}

    # Its directory goes to another machine; the one that stayed behind is refused.
    b.stop()
    twin = make_host("twin", 1)
    shutil.copytree(b.data_dir, twin.data_dir, ignore=shutil.ignore_patterns("agent.*"))
    twin.first = ["--listen", "127.0.0.3"]
    twin.start()
    until(lambda: a.hosts()[2]["ip_address"] == "127.0.0.3", "the copy has its place")
    until(lambda: material_of(twin).addresses == ("127.0.0.3",), "a certificate, and a new key")
    refused = b.refused_up()
    assert refused["code"] == "CertificateRefused" and "copied" in refused["hint"], refused
    assert a.ended("--gpus", "1", "--", "true")["state"] == "succeeded"
    until(lambda: (a.hosts()[2]["measured"] or {}).get("round_trip_ms"), "what it has was measured")
    until(lambda: (a.hosts()[1]["measured"] or {}).get("fdatasync_ms"), "and the first one's disk")
