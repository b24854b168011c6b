"""A host's enrolment in a cluster: how it gets one, as the first or by joining, and what it keeps of it (cluster.json).

A host without one is alone: it listens on loopback only and has no certificate. The file is written last, after key,
certificate and bundle (``security/host_material.py``): a start that was cut off before it begins again.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from time import time
from typing import cast

from cryptography import x509

import actorgrid
from actorgrid.actors.files.departure import refuse_departed
from actorgrid.actors.files.identity import ensure_host_id, write_atomically
from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import CertificateRefused, DataDirUnusable, InvalidSetting, StatementRefused, WrongState

from ..consensus.raft_links import VoterPlan
from ..consensus.voter_inquiries import ToldVoters
from ..gpu.host_capacity import host_cpu_milli, host_memory_mib
from ..ledger.commands import FoundCluster
from ..ledger.join_tokens import JoinToken, read_token
from ..ledger.names import is_loopback
from ..security.authority import create_authority
from ..security.host_material import (
    WRAP_FILE,
    HostMaterial,
    ensure_host_key,
    issue_own,
    load_material,
    store_material,
)
from ..security.join_client import MemberAddress, join, read_member
from ..security.join_messages import Capabilities
from ..security.joiner import Joined
from ..security.keys import ensure_wrap_key, load_authority, new_private_key, store_authority
from ..security.trust_bundle import first_bundle
from ..security.voters_statement import StatedVoters, check_voters
from .raft_net import RaftNet
from .start_checks import refuse_foreign_address

FIRST_NODE = 1
CALLS_OFFSET, RAFT_OFFSET, JOIN_OFFSET = 1, 2, 3
LOOPBACK_HTTPS_OFFSET = 4
"""A cluster whose hosts share a machine has plain HTTP on that address already."""
_NAME_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class JoinOrder:
    """A person's order to join: by which member (``HOST[:PORT]``), with which token."""

    member: str
    token: str


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A host's place in a cluster: which cluster, which node of it, and where the host listens for the others.

    ``seeds``: the members it was told of when it joined, as ``VoterPlan`` takes them. ``stated``: epoch and index of
    the log as of which a voter has signed that they are those that vote; empty in what a version before has kept.
    """

    cluster_id: str
    node: int
    founding: bool
    address: str
    base_port: int
    seeds: dict[str, MemberRecord] = field(default_factory=dict)
    stated: list[int] = field(default_factory=list)

    @property
    def position(self) -> tuple[int, int] | None:
        """``stated``, as it is compared; ``None`` where nobody has signed who votes."""
        return (self.stated[0], self.stated[1]) if self.stated else None

    @property
    def listens(self) -> dict[str, str]:
        """The ADDRESS:PORT of each service of this host, for the ledger."""
        return listens(self.address, self.base_port)

    @property
    def calls_port(self) -> int:
        """The port for calls and streams of other hosts."""
        return self.base_port + CALLS_OFFSET

    @property
    def join_port(self) -> int:
        """The port on which new hosts are let in."""
        return self.base_port + JOIN_OFFSET

    @property
    def gossip_port(self) -> int:
        """The UDP port for gossip of other hosts: the number that is the join server's over TCP."""
        return self.base_port + JOIN_OFFSET

    @property
    def https_port(self) -> int:
        """The HTTPS port, for clients of other machines."""
        return https_port(self.address, self.base_port)

    def plan(self, paths: HostPaths, host_id: str, material: HostMaterial) -> VoterPlan:
        """The plan that Consensus starts from."""
        net = RaftNet(paths.security_dir, self.address, self.base_port + RAFT_OFFSET)
        founds = None
        if self.founding:
            founds = FoundCluster(self.cluster_id, host_id, self.listens, material.identity.fingerprint, at=time())
        retell = None if self.founding else StatementKeeper(paths, host_id)
        return VoterPlan(self.node, net, self.founding, self.seeds, net.renew, founds, self.position, retell)


@dataclass(frozen=True, slots=True)
class StatementKeeper:
    """Takes what a voter has signed, later, of who votes (``consensus/voter_inquiries.Retell``): for a start that
    finds none of the voters that it was told of, and for those after it."""

    paths: HostPaths
    host_id: str

    def __call__(self, statement: bytes, challenges: Collection[bytes]) -> ToldVoters:
        """The voters, on disk when this returns. Raises StatementRefused, MalformedMessage, WrongCluster, and what is
        wrong with this host's files."""
        enrolment, material = kept_enrolment(self.paths), load_material(self.paths.security_dir, time())
        if enrolment is None or material is None:
            raise DataDirUnusable("this host has no place in a cluster any more", asked=str(self.paths.cluster_file))
        fingerprint = material.identity.fingerprint
        stated = check_voters(statement, material.bundle, self.host_id, fingerprint, challenges)
        if stated.node != enrolment.node:
            raise StatementRefused(
                "the cluster knows this host by another number",
                asked=f"node {enrolment.node}",
                found=f"node {stated.node}",
                hint="was it removed, and let in again? Join in an empty directory (--data-dir)",
            )
        # A voter that lags, or was cut off, may mean well; but who voted then may have been removed since.
        if enrolment.position is not None and stated.position < enrolment.position:
            raise StatementRefused(
                "who votes was stated as of an earlier entry than the last time",
                asked=f"entry {enrolment.stated[1]} of epoch {enrolment.stated[0]}, or a later one",
                found=f"entry {stated.index} of epoch {stated.epoch}",
                hint="it is asked again; after a recovery from one survivor, join again with a new token",
            )
        newer = replace(enrolment, seeds=_seeds(stated, self.host_id), stated=list(stated.position))
        if newer.seeds != enrolment.seeds:  # else it asks on, and would write every two seconds
            _keep(self.paths, newer)
        return ToldVoters(stated.position, newer.seeds)


def https_port(address: str, base_port: int) -> int:
    """The HTTPS port: the base port, which serves plain HTTP on loopback; another where *address* is loopback too."""
    return base_port + LOOPBACK_HTTPS_OFFSET if is_loopback(address) else base_port


def listens(address: str, base_port: int) -> dict[str, str]:
    """The ADDRESS:PORT of each service."""
    ports = {
        "raft": base_port + RAFT_OFFSET,
        "calls": base_port + CALLS_OFFSET,
        "join": base_port + JOIN_OFFSET,
        "https": https_port(address, base_port),
    }
    return {service: str(MemberAddress(address, port)) for service, port in ports.items()}


def enrol(
    paths: HostPaths, settings: Settings, order: JoinOrder | None, say: Callable[[str], None]
) -> tuple[Enrolment, HostMaterial] | None:
    """This host's enrolment, kept or new; ``None`` for one that is to be alone. What is in *settings* follows it.

    Raises WrongState when it has one already and *order* wants another, InvalidSetting when the settings do not fit it,
    what ``join`` raises, and what is wrong with its files (KeyUnusable, KeyExposed, CertificateRefused, ...).
    """
    refuse_departed(paths)
    kept = kept_enrolment(paths)
    if kept is not None:
        return _return_to(kept, paths, settings, order, say)
    if order is None and not settings.cluster.listen:
        return None
    _refuse_no_port(settings)
    enrolment, material = _join(paths, settings, order, say) if order is not None else _found(paths, settings)
    # In this order: an enrolment that is kept without its certificate is refused at every later start.
    store_material(paths.security_dir, material)
    _keep(paths, enrolment)
    return enrolment, material


def kept_enrolment(paths: HostPaths) -> Enrolment | None:
    """The enrolment kept on this host's disk. Raises DataDirUnusable."""
    try:
        return Enrolment(**json.loads(paths.cluster_file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OSError) as error:
        raise DataDirUnusable(
            f"{paths.cluster_file} cannot be read: {error}",
            asked=str(paths.cluster_file),
            hint="restore it from a backup; else remove the host from the cluster and join in an empty directory",
        ) from error


def _return_to(
    enrolment: Enrolment, paths: HostPaths, settings: Settings, order: JoinOrder | None, say: Callable[[str], None]
) -> tuple[Enrolment, HostMaterial]:
    if settings.origin("cluster.base_port") == "default":
        settings.cluster.base_port = enrolment.base_port
    _refuse_no_port(settings)
    if order is not None:
        return _join_again(enrolment, paths, settings, order, say)
    moved = replace(
        enrolment, address=settings.cluster.listen or enrolment.address, base_port=settings.cluster.base_port
    )
    refuse_foreign_address(moved.address, "if this host has another address now, actorgrid up --listen")
    material = _kept_material(paths, moved)
    if moved != enrolment:
        # The others hear of it as soon as one of them is reached (security/trust_maintainer.py).
        say(f"this host is at {moved.address}, ports from {moved.base_port}, and tells the others")
        _keep(paths, moved)
    return moved, material


def _kept_material(paths: HostPaths, enrolment: Enrolment) -> HostMaterial:
    """The host's material; with a new certificate when it has run out and this host has the authority's key.

    Raises CertificateRefused for one that has run out otherwise, DataDirUnusable when there is none.
    """
    folder, now_s = paths.security_dir, time()
    material = load_material(folder, now_s, expired_too=True)
    if material is None:
        raise DataDirUnusable(
            f"{folder} holds no certificate",
            asked=enrolment.cluster_id,
            hint="restore it from a backup; else remove the host from the cluster and join in an empty directory",
        )
    if now_s <= material.identity.valid_until_s:
        return material
    bundle = material.bundle
    authority = load_authority(folder, bundle, bundle.signing.generation, ensure_wrap_key(folder / WRAP_FILE))
    if authority is None:
        material.check(now_s)
        raise AssertionError("a certificate that has run out is refused")
    host_id, serial = material.identity.host_id, x509.random_serial_number()
    fresh = issue_own(authority, bundle, material.key, host_id, (enrolment.address,), now_s, serial)
    store_material(folder, fresh)
    return fresh


def _keep(paths: HostPaths, enrolment: Enrolment) -> None:
    text = json.dumps(asdict(enrolment), indent=1) + "\n"
    write_atomically(paths.cluster_file, text.encode())


def _refuse_no_port(settings: Settings) -> None:
    if not settings.cluster.base_port:
        raise InvalidSetting(
            "a host of a cluster has ports that the others know",
            asked="cluster.base_port: 0",
            hint="choose one: --port 7400",
        )


def _found(paths: HostPaths, settings: Settings) -> tuple[Enrolment, HostMaterial]:
    """Found a cluster: make an authority, and a certificate that it issues for this host."""
    host_id, now_s, address = ensure_host_id(paths), time(), settings.cluster.listen
    slug = re.sub(r"[^a-z0-9]+", "-", settings.cluster.name.lower()).strip("-")[:_NAME_CHARACTERS].strip("-")
    # Clusters of one name are not one cluster: a token, a certificate, a link of the one is nothing to the other.
    cluster_id = f"{slug or 'cluster'}-{secrets.token_hex(3)}"
    authority = create_authority(cluster_id, new_private_key(), now_s, x509.random_serial_number())
    store_authority(paths.security_dir, authority, ensure_wrap_key(paths.security_dir / WRAP_FILE))
    material = issue_own(
        authority,
        first_bundle(authority.certificate, cluster_id),
        ensure_host_key(paths.security_dir),
        host_id,
        (address,),
        now_s,
        x509.random_serial_number(),
    )
    return Enrolment(cluster_id, FIRST_NODE, True, address, settings.cluster.base_port), material


def _join(
    paths: HostPaths, settings: Settings, order: JoinOrder, say: Callable[[str], None]
) -> tuple[Enrolment, HostMaterial]:
    token, member = read_token(order.token), read_member(order.member)
    if any((paths.ledger_dir / "segments").glob("*")):
        raise WrongState(
            "this data directory holds a ledger of its own, which a cluster cannot take over",
            asked=f"--join {order.member}",
            found=str(paths.ledger_dir),
            hint="give an empty directory with --data-dir; the host that has the jobs can begin the cluster (--listen)",
        )
    joined, address, material = _visit(paths, settings, token, member, say)
    welcome, stated = joined.welcome, joined.stated
    say(f"let in to cluster {welcome.cluster_id} as node {welcome.node}")
    base_port, seeds = settings.cluster.base_port, _seeds(stated, welcome.host_id)
    place = Enrolment(welcome.cluster_id, welcome.node, False, address, base_port, seeds, list(stated.position))
    return place, material


def _join_again(
    enrolment: Enrolment, paths: HostPaths, settings: Settings, order: JoinOrder, say: Callable[[str], None]
) -> tuple[Enrolment, HostMaterial]:
    """A member that the others do not believe any more, because its certificate ran out, or its authority went while
    it was away: a token gives it another, for the key that they know it by. Or one that never got the log, and has
    to hear anew who votes."""
    try:
        load_material(paths.security_dir, time())
    except CertificateRefused as error:
        say(f"joining again: {error.message}")
    else:
        if _lacks_log(enrolment, paths):
            say("joining again: this host has not had the ledger since it joined")
        else:
            raise _member_already(enrolment, paths, order)
    joined, address, material = _visit(paths, settings, read_token(order.token), read_member(order.member), say)
    welcome, stated = joined.welcome, joined.stated
    if (welcome.cluster_id, welcome.node) != (enrolment.cluster_id, enrolment.node):
        raise WrongState(
            "the cluster takes this host for a new one, and its data is that of another",
            asked=f"node {enrolment.node} of {enrolment.cluster_id}",
            found=f"node {welcome.node} of {welcome.cluster_id}",
            hint="join in an empty directory (--data-dir)",
        )
    again = replace(
        enrolment,
        address=address,
        base_port=settings.cluster.base_port,
        seeds=_seeds(stated, welcome.host_id),
        stated=list(stated.position),
    )
    store_material(paths.security_dir, material)
    _keep(paths, again)
    return again, material


def _lacks_log(enrolment: Enrolment, paths: HostPaths) -> bool:
    """Whether the log here is older than what this host was told of who votes. Raises as ``read_log``."""
    # It reads the log with all that this needs, which no other start does.
    from ..consensus.ledger_check import read_log

    segments = paths.ledger_dir / "segments"
    if enrolment.position is None or not segments.is_dir():
        return enrolment.position is not None
    return read_log(segments, 0, lambda *_: None).last_index < enrolment.position[1]


def _member_already(enrolment: Enrolment, paths: HostPaths, order: JoinOrder) -> WrongState:
    return WrongState(
        f"this host is a member of cluster {enrolment.cluster_id} already",
        asked=f"--join {order.member}",
        found=str(paths.cluster_file),
        hint="start it without --join; to join another cluster, give an empty directory with --data-dir",
    )


def _visit(
    paths: HostPaths, settings: Settings, token: JoinToken, member: MemberAddress, say: Callable[[str], None]
) -> tuple[Joined, str, HostMaterial]:
    """Ask a member to be let in; gives what came of it, and the address of this host."""
    host_id, key = ensure_host_id(paths), ensure_host_key(paths.security_dir)
    addresses: list[str] = []

    def capabilities(own: str) -> Capabilities:
        # Where it reaches the member from is where the members reach it, unless somebody says otherwise.
        addresses.append(settings.cluster.listen or own)
        return Capabilities(
            host_cpu_milli(),
            host_memory_mib(),
            (addresses[0],),
            listens(addresses[0], settings.cluster.base_port),
            actorgrid.__version__,
            settings.cluster.rack or None,
        )

    joined = join(member, token, host_id, key, capabilities, say)
    return joined, addresses[0], HostMaterial(key, joined.welcome.certificate, joined.welcome.bundle)


def _seeds(stated: StatedVoters, own: str) -> dict[str, MemberRecord]:
    seeds = {
        voter.host_id: {
            "node": voter.node,
            "addresses": {"raft": voter.raft, "calls": voter.calls},
            "fingerprints": [voter.fingerprint],
        }
        for voter in stated.voters
        if voter.host_id != own
    }
    return cast("dict[str, MemberRecord]", seeds)  # as much of their records as links go by
