"""A host's place in a cluster, from its files and what a person asks for."""

from __future__ import annotations

import json
import os
import pickle
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from actorgrid.actors.files.departure import mark_departed
from actorgrid.actors.host.enrolment import Enrolment, JoinOrder, StatementKeeper, enrol, kept_enrolment
from actorgrid.actors.ledger.join_tokens import make_token
from actorgrid.actors.raft.storage.log import SegmentLog
from actorgrid.actors.security.authority import HOST_LIFE_S, create_authority
from actorgrid.actors.security.host_material import WRAP_FILE, issue_own, load_material, store_material
from actorgrid.actors.security.keys import authority_file, ensure_wrap_key, load_authority
from actorgrid.actors.security.trust_bundle import first_bundle
from actorgrid.actors.security.voters_statement import StatedVoters, VoterAddress, sign_voters
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import (
    CertificateRefused,
    DataDirUnusable,
    HostRemoved,
    HostUnreachable,
    InvalidSetting,
    MalformedJoinToken,
    StatementRefused,
    WrongState,
)
from tests.security.rig import CLUSTER, Cluster


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    made = HostPaths(tmp_path / "data")
    made.make()
    return made


def listening(address: str = "127.0.0.1", port: int = 9000) -> Settings:
    settings = Settings()
    settings.cluster.listen, settings.cluster.base_port = address, port
    settings.set_origins({"cluster.base_port": "--port"})
    return settings


def quiet(_: str) -> None:
    return None


def test_a_host_that_is_told_nothing_is_alone(paths: HostPaths) -> None:
    assert enrol(paths, Settings(), None, quiet) is None
    assert not paths.security_dir.exists()


def test_the_first_host_makes_an_authority_and_comes_back_to_the_same_place(paths: HostPaths) -> None:
    taken = enrol(paths, listening(), None, quiet)
    assert taken is not None
    place, material = taken
    assert (place.node, place.founding, place.listens["raft"]) == (1, True, "127.0.0.1:9002")
    assert material.identity.cluster_id == place.cluster_id
    assert oct(os.stat(paths.security_dir).st_mode)[-3:] == "700"
    settings = Settings()
    again = enrol(paths, settings, None, quiet)
    assert again is not None and again[0] == place
    assert settings.cluster.base_port == 9000
    host_id = json.loads(paths.host_file.read_text())["host_id"]
    plan = pickle.loads(pickle.dumps(place.plan(paths, host_id, material)))
    assert plan.founds.fingerprint == material.identity.fingerprint
    assert plan.founds.host_id == host_id == material.identity.host_id


def test_two_clusters_of_one_name_are_not_one(paths: HostPaths, tmp_path: Path) -> None:
    other = HostPaths(tmp_path / "other")
    other.make()
    found = [enrol(each, listening(), None, quiet) for each in (paths, other)]
    assert len({taken[0].cluster_id for taken in found if taken is not None}) == 2


def test_a_start_that_was_cut_off_before_the_place_was_kept_begins_again(paths: HostPaths) -> None:
    enrol(paths, listening(), None, quiet)
    paths.cluster_file.unlink()
    taken = enrol(paths, listening(), None, quiet)
    assert taken is not None
    kept = load_material(paths.security_dir, time.time())
    assert kept is not None and kept.identity.cluster_id == taken[0].cluster_id


def test_what_does_not_fit_the_place_is_refused(paths: HostPaths) -> None:
    with pytest.raises(InvalidSetting, match="ports that the others know"):
        enrol(paths, listening(port=0), None, quiet)
    enrol(paths, listening(), None, quiet)
    with pytest.raises(WrongState, match="member of cluster"):
        enrol(paths, Settings(), JoinOrder("gpu-1", "agj1.x"), quiet)
    paths.cluster_file.write_text("{}")
    with pytest.raises(DataDirUnusable, match="cannot be read"):
        enrol(paths, listening(), None, quiet)


def test_a_host_that_is_started_at_another_address_moves_there(paths: HostPaths) -> None:
    enrol(paths, listening(), None, quiet)
    said: list[str] = []
    taken = enrol(paths, listening("127.0.0.2", 9100), None, said.append)
    assert taken is not None
    assert taken[0].listens["raft"] == "127.0.0.2:9102" and "tells the others" in said[0]
    again = enrol(paths, Settings(), None, quiet)
    assert again is not None and again[0] == taken[0]


def run_out(paths: HostPaths) -> None:
    """Give the host a certificate whose time is over, of its own authority."""
    material = load_material(paths.security_dir, time.time())
    assert material is not None
    authority = load_authority(paths.security_dir, material.bundle, 1, ensure_wrap_key(paths.security_dir / WRAP_FILE))
    assert authority is not None
    long_ago = time.time() - HOST_LIFE_S - 3600
    old = create_authority(authority.cluster_id, authority.key, long_ago - 3600, 1)
    identity, addresses = material.identity, material.addresses
    bundle = first_bundle(old.certificate, identity.cluster_id)
    store_material(paths.security_dir, issue_own(old, bundle, material.key, identity.host_id, addresses, long_ago, 2))


def test_a_voter_whose_certificate_ran_out_issues_itself_another(paths: HostPaths) -> None:
    enrol(paths, listening(), None, quiet)
    run_out(paths)
    with pytest.raises(CertificateRefused, match="expired"):
        load_material(paths.security_dir, time.time())
    taken = enrol(paths, Settings(), None, quiet)
    assert taken is not None
    kept = load_material(paths.security_dir, time.time())
    assert kept is not None and kept.identity == taken[1].identity


def test_any_other_host_whose_certificate_ran_out_is_told_to_join_again(paths: HostPaths) -> None:
    enrol(paths, listening(), None, quiet)
    run_out(paths)
    authority_file(paths.security_dir, 1).unlink()
    with pytest.raises(CertificateRefused, match="expired") as refused:
        enrol(paths, Settings(), None, quiet)
    assert "joins again with a new token" in refused.value.hint
    with pytest.raises(MalformedJoinToken):  # it may: only this token is none
        enrol(paths, listening(), JoinOrder("gpu-1", "what is this"), quiet)


def test_a_host_that_left_comes_back_to_nothing_and_hears_what_to_do(paths: HostPaths) -> None:
    enrol(paths, listening(), None, quiet)
    mark_departed(paths, "it left", 1.0)
    for order in (None, JoinOrder("gpu-1", "agj1.x")):
        with pytest.raises(HostRemoved, match="it left") as refused:
            enrol(paths, Settings(), order, quiet)
        assert "--data-dir" in refused.value.hint


def test_a_host_with_a_ledger_of_its_own_joins_nobody(paths: HostPaths) -> None:
    token = make_token("c1", "ab" * 32, bytes(5), bytes(16), 0.0)[0].text
    (paths.ledger_dir / "segments").mkdir()
    (paths.ledger_dir / "segments" / "1.log").touch()
    with pytest.raises(WrongState, match="ledger of its own"):
        enrol(paths, listening(), JoinOrder("gpu-1", token), quiet)
    with pytest.raises(MalformedJoinToken):
        enrol(paths, listening(), JoinOrder("gpu-1", "what is this"), quiet)


# -- who votes, as a voter has signed it


class Told:
    """A host that joined and was told who votes, with the authority that signs it."""

    def __init__(self, paths: HostPaths) -> None:
        self.paths, self.trust = paths, Cluster()
        material = self.trust.host("host-b")
        store_material(paths.security_dir, material)
        self.key = material.identity.fingerprint
        self.keep(Enrolment(CLUSTER, 4, False, "127.0.0.1", 9000, stated=[1, 9]))

    def keep(self, place: Enrolment) -> None:
        self.paths.cluster_file.write_text(json.dumps(asdict(place)))

    def says(
        self, index: int, host: str = "host-a", challenge: bytes = bytes(32), node: int = 4, epoch: int = 1
    ) -> bytes:
        voter = VoterAddress(host, 1, "127.0.0.1:9102", "127.0.0.1:9101", "", "ab" * 32)
        own = VoterAddress("host-b", 4, "127.0.0.1:9002", "127.0.0.1:9001", "", self.key)
        stated = StatedVoters(CLUSTER, "host-b", node, self.key, challenge, epoch, index, 2, 1.0, (voter, own))
        return sign_voters(self.trust.authority, stated)


def test_a_later_statement_of_who_votes_is_kept_for_the_next_start_and_an_earlier_one_is_not(paths: HostPaths) -> None:
    told = Told(paths)
    keeper = pickle.loads(pickle.dumps(StatementKeeper(paths, "host-b")))
    taken = keeper(told.says(12), [bytes(32)])
    assert (taken.position, list(taken.members), taken.nodes) == ((1, 12), ["host-a"], {1})
    kept = kept_enrolment(paths)
    assert kept is not None and (kept.position, list(kept.seeds)) == ((1, 12), ["host-a"])
    with pytest.raises(StatementRefused, match="an earlier entry"):
        keeper(told.says(11, "host-c"), [bytes(32)])
    assert keeper(told.says(3, "host-c", epoch=2), [bytes(32)]).position == (2, 3)  # after a recovery
    for wrong in (told.says(20, challenge=b"x" * 32), told.says(20, node=5)):
        with pytest.raises(StatementRefused):
            keeper(wrong, [bytes(32)])
    kept = kept_enrolment(paths)
    assert kept is not None and (kept.position, list(kept.seeds)) == ((2, 3), ["host-c"])


def test_a_host_that_joined_with_a_version_before_was_told_nothing_signed(paths: HostPaths) -> None:
    told = Told(paths)
    place = asdict(Enrolment(CLUSTER, 4, False, "127.0.0.1", 9000))
    del place["stated"]
    paths.cluster_file.write_text(json.dumps(place))
    kept, material = kept_enrolment(paths), load_material(paths.security_dir, time.time())
    assert kept is not None and material is not None
    assert kept.plan(paths, "host-b", material).told is None
    assert StatementKeeper(paths, "host-b")(told.says(1), [bytes(32)]).position == (1, 1)


def test_a_member_joins_again_by_token_as_long_as_its_log_lacks_what_it_was_told(paths: HostPaths) -> None:
    told = Told(paths)
    order = JoinOrder("127.0.0.1:1", told.trust.token().text)
    said: list[str] = []
    with pytest.raises(HostUnreachable):  # it asks: only nobody is there
        enrol(paths, listening(), order, said.append)
    assert "has not had the ledger" in said[0]
    log = SegmentLog.open(paths.ledger_dir / "segments", 4096)
    try:
        log.reset(20, 2)
    finally:
        log.close()
    with pytest.raises(WrongState, match="member of cluster"):
        enrol(paths, listening(), order, quiet)
