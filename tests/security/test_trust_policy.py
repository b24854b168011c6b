"""Keeping the cluster's trust: every host by what the ledger says, without files, sockets or clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.trust import BUNDLE
from actorgrid.actors.security import trust_policy
from actorgrid.actors.security.authority import HOST_LIFE_S, Authority
from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.keys import new_private_key, seal_authority
from actorgrid.errors import ActorGridError, NotFound, StaleToken, WrongState
from tests.security.rig import CLUSTER, DAY_S, NOW_S, Cluster, new_authority


@dataclass
class Keeper:
    """One host: what it would have on its disk."""

    host_id: str
    address: str
    material: HostMaterial
    authorities: dict[int, Authority] = field(default_factory=dict)
    spare_key: ec.EllipticCurvePrivateKey | None = None
    away: bool = False
    complaints: list[str] = field(default_factory=list)

    @property
    def listens(self) -> dict[str, str]:
        return {"raft": f"{self.address}:7402"}


class Rig:
    """Hosts h1, h2, ... that keep one ledger's trust; the first has the authority's key."""

    def __init__(self, count: int, voters: int | None = None) -> None:
        self.cluster = Cluster()
        self.now_s = NOW_S
        self.ledger = Ledger()
        self.hosts: dict[str, Keeper] = {}
        for number in range(1, count + 1):
            self.join(f"h{number}")
        self.hosts["h1"].authorities[1] = self.cluster.authority
        self.voters = [f"h{number}" for number in range(1, (voters or count) + 1)]

    def join(self, host_id: str) -> Keeper:
        address = f"10.0.0.{len(self.hosts) + 1}"
        material = self.cluster.host(host_id, (address,), self.now_s)
        host = self.hosts[host_id] = Keeper(host_id, address, material)
        where, mark = {"raft": f"{address}:7402"}, material.identity.fingerprint
        first = not self.ledger.members
        self.do(
            commands.FoundCluster(CLUSTER, host_id, where, mark, at=NOW_S)
            if first
            else commands.AddMember(host_id, where, mark, at=NOW_S)
        )
        return host

    def do(self, command: dict[str, Any]) -> Any:
        outcome = self.ledger.apply(self.ledger.index + 1, command)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def view(self, host: Keeper) -> trust_policy.TrustView:
        ledger = self.ledger
        return trust_policy.TrustView(
            host.host_id,
            host.material,
            host.authorities,
            host.listens,
            (host.address,),
            ledger.members,
            ledger.trust,
            self.voters,
            self.now_s,
            host.spare_key,
        )

    def settle(self, rounds: int = 60) -> None:
        """Until nobody has anything to do. Who acts for others is somebody else each time."""
        for _ in range(rounds):
            steps = 0
            for host in self.hosts.values():
                if not host.away:
                    steps += self._turn(host)
            if not steps:
                return
        raise AssertionError("they never come to an end")

    def _turn(self, host: Keeper) -> int:
        done = 0
        for own in trust_policy.own_steps(self.view(host)):
            done += self._own(host, own)
        for step in trust_policy.holder_steps(self.view(host)):
            done += self._holder(host, step)
        return done

    def _own(self, host: Keeper, step: trust_policy.OwnStep) -> int:
        if isinstance(step, trust_policy.LogProblem):
            host.complaints.append(f"{step.about}: {step.error}")
            return 0
        if isinstance(step, trust_policy.TakeMaterial):
            host.material = step.material
            if host.spare_key is not None and step.material.key is host.spare_key:
                host.spare_key = None
        elif isinstance(step, trust_policy.TakeKey):
            host.authorities[step.authority.generation] = step.authority
        elif isinstance(step, trust_policy.ForgetKey):
            del host.authorities[step.generation]
        elif isinstance(step, trust_policy.AnnounceAddress):
            self.do(commands.ChangeMember(host.host_id, at=self.now_s, addresses=step.listens))
        elif isinstance(step, trust_policy.ReportMaterial):
            self.do(commands.ReportTrust(**step.fields, at=self.now_s))
        else:
            self.do(commands.RequestCertificate(host.host_id, step.csr.hex(), [host.address], at=self.now_s))
        return 1

    def _holder(self, host: Keeper, step: trust_policy.HolderStep) -> int:
        if isinstance(step, trust_policy.LogProblem):
            host.complaints.append(f"{step.about}: {step.error}")
            return 0
        if isinstance(step, trust_policy.Publish):
            command = commands.PublishBundle(step.bundle.to_plain(), at=self.now_s)
        elif isinstance(step, trust_policy.Seal):
            sealed = seal_authority(step.authority, step.certificate).hex()
            generation = step.authority.generation
            command = commands.SealAuthority(step.host_id, generation, step.fingerprint, sealed, at=self.now_s)
        else:
            authority = host.authorities[host.material.bundle.signing.generation]
            fields = trust_policy.issued_fields(authority.issue(step.request, self.now_s, x509.random_serial_number()))
            command = commands.IssueCertificate(step.host_id, step.number, **fields, at=self.now_s)
        try:
            self.do(command)
        except StaleToken:
            return 0  # another host was quicker
        return 1

    def introduce(self, by: str) -> None:
        host = self.hosts[by]
        old = host.authorities[host.material.bundle.signing.generation]
        new = new_authority(CLUSTER, self.now_s, old.generation + 1)
        bundle = host.material.bundle.introduce(
            new.certificate, old.endorse(new.certificate), new.endorse(old.certificate)
        )
        host.authorities[new.generation] = new
        self.do(commands.PublishBundle(bundle.to_plain(), at=self.now_s))

    def generations(self) -> dict[str, int]:
        return {host.host_id: host.material.identity.generation for host in self.hosts.values()}

    def keys(self) -> dict[str, list[int]]:
        return {host.host_id: sorted(host.authorities) for host in self.hosts.values()}


def test_every_voter_gets_the_authoritys_key_and_nobody_else() -> None:
    rig = Rig(4, voters=3)
    rig.settle()
    assert rig.keys() == {"h1": [1], "h2": [1], "h3": [1], "h4": []}
    assert [rig.ledger.trust[id]["keys"] for id in ("h1", "h2", "h3", "h4")] == [[1], [1], [1], []]
    assert all(record.get("sealed", {}) == {} for record in rig.ledger.trust.values())
    assert Ledger.restore(rig.ledger.snapshot()).trust == rig.ledger.trust


def test_the_loss_of_the_first_host_loses_no_key() -> None:
    rig = Rig(3)
    rig.settle()
    rig.hosts["h1"].away = True
    rig.join("h4")
    rig.voters = ["h2", "h3", "h4"]
    rig.settle()
    assert rig.keys()["h4"] == [1]


def test_a_host_that_votes_no_more_forgets_the_key_once_all_voters_have_it() -> None:
    rig = Rig(4, voters=3)
    rig.settle()
    rig.voters = ["h1", "h2", "h4"]
    rig.hosts["h4"].away = True
    rig.settle()
    assert rig.keys()["h3"] == [1]
    rig.hosts["h4"].away = False
    rig.settle()
    assert rig.keys() == {"h1": [1], "h2": [1], "h3": [], "h4": [1]}


def test_a_certificate_is_renewed_in_time_with_the_same_key() -> None:
    rig = Rig(2, voters=1)
    rig.settle()
    before = rig.hosts["h2"].material.identity
    rig.now_s += HOST_LIFE_S * 0.6
    rig.settle()
    assert rig.hosts["h2"].material.identity == before
    rig.now_s += HOST_LIFE_S * 0.1
    rig.settle()
    after = rig.hosts["h2"].material.identity
    assert (after.fingerprint, after.digest != before.digest) == (before.fingerprint, True)
    assert after.valid_until_s > before.valid_until_s + 60 * DAY_S
    assert rig.ledger.trust["h2"]["valid_until"] == after.valid_until_s


def test_a_new_key_is_believed_before_it_is_used_and_the_old_one_not_after() -> None:
    rig = Rig(2, voters=1)
    rig.settle()
    host = rig.hosts["h2"]
    old = host.material.identity.fingerprint
    host.spare_key = new_private_key()
    seen: list[list[str]] = []
    do = rig.do

    def watch(command: dict[str, Any]) -> Any:
        answer = do(command)
        seen.append(rig.ledger.members["h2"]["fingerprints"])
        assert host.material.identity.fingerprint in seen[-1]
        return answer

    rig.do = watch  # type: ignore[method-assign]
    rig.settle()
    new = host.material.identity.fingerprint
    assert new != old and [old, new] in seen
    assert rig.ledger.members["h2"]["fingerprints"] == [new]


def test_a_host_that_moved_gets_a_certificate_for_its_new_address() -> None:
    rig = Rig(2, voters=1)
    rig.settle()
    host = rig.hosts["h2"]
    csr = host.material.renewal_request(("10.0.9.9",)).hex()
    rig.do(commands.RequestCertificate("h2", csr, ["10.0.9.9"], at=NOW_S))
    rig.settle()
    assert host.material.addresses == ("10.0.0.2",)  # the others do not know the address
    assert any("has not told" in text for text in rig.hosts["h1"].complaints)
    host.address = "10.0.9.9"
    rig.settle()
    assert rig.ledger.members["h2"]["addresses"] == {"raft": "10.0.9.9:7402"}
    assert host.material.addresses == ("10.0.9.9",)


def test_nobody_gets_a_certificate_for_the_address_of_another() -> None:
    rig = Rig(2, voters=1)
    rig.settle()
    host = rig.hosts["h2"]
    host.address = "10.0.0.1"
    rig.settle()
    assert any("another host's" in text for text in rig.hosts["h1"].complaints)
    assert host.material.addresses == ("10.0.0.2",)


def test_a_rotation_runs_to_its_end_by_itself() -> None:
    rig = Rig(4, voters=3)
    rig.settle()
    rig.introduce("h2")
    rig.settle()
    assert set(rig.generations().values()) == {2}
    assert rig.keys() == {"h1": [2], "h2": [2], "h3": [2], "h4": []}
    assert [each["generation"] for each in rig.ledger.trust[BUNDLE]["bundle"]["authorities"]] == [2]


def test_a_rotation_waits_for_a_host_that_is_away_and_says_for_which() -> None:
    rig = Rig(4, voters=3)
    rig.settle()
    rig.hosts["h4"].away = True
    rig.introduce("h1")
    rig.settle()
    view = rig.view(rig.hosts["h1"])
    assert trust_policy.rotation(view) == trust_policy.RotationReadiness("switch", ["h4"])
    assert rig.generations()["h1"] == 1
    rig.hosts["h4"].away = False
    rig.hosts["h3"].away = True  # its key of the next generation is there, its certificate is not
    rig.settle()
    assert trust_policy.rotation(rig.view(rig.hosts["h1"])) == trust_policy.RotationReadiness("retire", ["h3"])
    rig.hosts["h3"].away = False
    rig.settle()
    assert trust_policy.rotation(rig.view(rig.hosts["h1"])) == trust_policy.RotationReadiness()


def test_the_ledger_refuses_a_step_that_members_are_not_ready_for() -> None:
    rig = Rig(3)
    rig.settle()
    rig.introduce("h1")
    first = rig.hosts["h1"]
    first.material = first.material.trusting(trust_policy.read_bundle(rig.ledger.trust[BUNDLE]["bundle"]))
    switched = first.material.bundle.switch()
    with pytest.raises(WrongState, match="not every host is ready") as refused:
        rig.do(commands.PublishBundle(switched.to_plain(), at=NOW_S))
    assert "h2" in refused.value.found
    with pytest.raises(StaleToken):
        rig.do(commands.PublishBundle({**switched.to_plain(), "version": 9}, at=NOW_S))
    called_off = first.material.bundle.retire(2)
    rig.do(commands.PublishBundle(called_off.to_plain(), at=NOW_S))
    rig.settle()
    assert rig.keys() == {"h1": [1], "h2": [1], "h3": [1]}


def test_a_key_sealed_for_an_earlier_certificate_is_sealed_anew() -> None:
    rig = Rig(2, voters=2)
    rig.hosts["h1"].away = True
    rig.settle()  # only h2 tells what it has
    rig.hosts["h1"].away, rig.hosts["h2"].away = False, True
    rig.settle()
    assert rig.ledger.trust["h2"]["sealed"].keys() == {"1"}
    host = rig.hosts["h2"]
    host.away, host.spare_key = False, new_private_key()
    rig.settle()
    assert rig.keys()["h2"] == [1]


def test_a_stranger_and_a_removed_host_have_no_record() -> None:
    rig = Rig(2)
    rig.settle()
    rig.do(commands.RemoveMember("h2", "ann", at=NOW_S))
    assert "h2" not in rig.ledger.trust
    with pytest.raises(NotFound):
        rig.do(commands.RequestCertificate("h2", "00", [], at=NOW_S))
    fields = trust_policy.facts(rig.view(rig.hosts["h1"]))
    with pytest.raises(WrongState, match="does not know"):
        rig.do(commands.ReportTrust(**{**fields, "fingerprint": "f" * 64}, at=NOW_S))


def test_a_certificate_of_another_request_is_refused() -> None:
    rig = Rig(2, voters=1)
    rig.settle()
    csr = rig.hosts["h2"].material.renewal_request(("10.0.0.2",)).hex()
    number = rig.do(commands.RequestCertificate("h2", csr, ["10.0.0.2"], at=NOW_S))["request"]
    with pytest.raises(ActorGridError) as refused:
        rig.do(commands.IssueCertificate("h2", number + 1, "x", "f", at=NOW_S))
    assert refused.value.code == "StaleToken"
