"""A host's share in keeping the cluster's trust, carried out: files, the ledger and the other servers of the host.

It looks every few seconds and whenever the ledger's records of trust or members change, and does what
``trust_policy.py`` says. Of several hosts with the authority's key the leader acts at once, the others one after the
other a while later, so that usually one does, and somebody does when it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time
from typing import Any

from cryptography import x509

from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.query_answers import LedgerStatus
from actorgrid.errors import ActorGridError, WrongState
from actorgrid.supervisors.server import Server

from ..ledger import commands
from ..ledger.client import LEADERLESS_S, LedgerClient
from ..ledger.messages import Query
from ..ledger.tables.trust import holders
from . import trust_policy
from .authority import Authority, create_authority
from .certificates import fingerprint
from .host_material import WRAP_FILE, HostMaterial, drop_spare_key, ensure_host_key, spare_key, store_material
from .keys import ensure_wrap_key, forget_authority, load_authority, new_private_key, seal_authority, store_authority
from .messages import MaterialChanged

LOOK_S = 3.0
TURN_S = 3.0
"""How much longer each further host waits before it does what another should have done."""
COMMIT_TIMEOUT_S = 20.0
STEPS_A_TURN = 8
NETS = ("consensus", "links")
"""The servers that have links, or show the certificate otherwise."""


class TrustMaintainer:
    """Keeps one host's share of the trust. *changed* is told of material that is to be used from now on."""

    def __init__(
        self,
        server: Server,
        ledger: LedgerClient,
        listens: Mapping[str, str],
        address: str,
        material: HostMaterial,
        changed: Callable[[HostMaterial], None],
    ) -> None:
        self.material = material
        self.authorities: dict[int, Authority] = {}
        self._server, self._ledger, self._changed = server, ledger, changed
        self._listens, self._address = listens, address
        self._folder = server.host.paths.security_dir
        self._host_id = str(server.host.host_id)
        self._voters: frozenset[str] = frozenset()
        self._busy = self._again = self._renew_now = False
        self._seen_at: dict[str, float] = {}
        self._problems_logged: set[str] = set()
        wrap_key = ensure_wrap_key(self._folder / WRAP_FILE)
        for each in material.bundle.authorities:
            authority = load_authority(self._folder, material.bundle, each.generation, wrap_key)
            if authority is not None:
                self.authorities[each.generation] = authority
        server.every(LOOK_S, self.look)

    @property
    def signing(self) -> Authority | None:
        """The authority that issues, if this host has its key."""
        return self.authorities.get(self.material.bundle.signing.generation)

    @property
    def holders(self) -> list[str]:
        """The members that have the key of the authority that issues, as far as they have told; the leader first."""
        found = [
            id
            for id in holders(self._ledger.trust, self.material.bundle.signing.generation)
            if id in self._ledger.members
        ]
        return sorted(found, key=lambda id: (id != self._ledger.leader, self._ledger.members[id]["node"]))

    def look(self) -> None:
        """Look whether there is a next step to take, and take it; called whenever records or time moved on."""
        self._again = True
        if not self._busy:
            self._busy = True
            self._server.spawn(self._work())

    async def _work(self) -> None:
        while self._again:
            self._again = False
            try:
                await self._turn()
            except ActorGridError as error:
                # Nothing of it is lost: the next look finds it again.
                self._server.log.info("keeping the cluster's trust: %s", error)
        self._busy = False

    async def _turn(self) -> None:
        ledger = self._ledger
        if self._host_id not in ledger.members:
            return
        status: LedgerStatus = await self._server.call("consensus", Query("status"))
        nodes = set(status["voters"])
        self._voters = frozenset(id for id, member in ledger.members.items() if member["node"] in nodes)
        for _ in range(STEPS_A_TURN):
            steps = trust_policy.own_steps(self.view())
            for step in steps:
                await self._do_own(step)
            if all(isinstance(step, trust_policy.LogProblem | trust_policy.AskForCertificate) for step in steps):
                break
        waiting: set[str] = set()
        for action in trust_policy.holder_steps(self.view()):
            waiting.add(_name(action))
            if self._is_ours(_name(action)):
                await self._do_for_others(action)
        self._seen_at = {name: at for name, at in self._seen_at.items() if name in waiting}

    def view(self) -> trust_policy.TrustView:
        """Gather everything that a decision needs."""
        spare = spare_key(self._folder)
        if spare is not None and fingerprint(spare) == self.material.identity.fingerprint:
            drop_spare_key(self._folder)
            spare = None
        return trust_policy.TrustView(
            self._host_id,
            self.material,
            self.authorities,
            self._listens,
            (self._address,),
            self._ledger.members,
            self._ledger.trust,
            self._voters,
            time(),
            spare,
            self._renew_now,
        )

    def _is_ours(self, name: str) -> bool:
        """Whether this host is the one to act: at once if it leads, else when those before it had their time."""
        if self._ledger.leads:
            return True
        now = self._server.runtime.monotonic()
        since = self._seen_at.setdefault(name, now)
        before = self.holders
        rank = before.index(self._host_id) if self._host_id in before else len(before)
        return now - since >= TURN_S * rank

    # -- for this host

    async def _do_own(self, step: trust_policy.OwnStep) -> None:
        log, now_s = self._server.log, time()
        if isinstance(step, trust_policy.TakeMaterial):
            log.info("%s: kept, and used for links from now on", step.why)
            self._take(step.material)
        elif isinstance(step, trust_policy.TakeKey):
            store_authority(self._folder, step.authority, ensure_wrap_key(self._folder / WRAP_FILE))
            self.authorities[step.authority.generation] = step.authority
            log.info("this host has the key of the authority's generation %d", step.authority.generation)
        elif isinstance(step, trust_policy.ForgetKey):
            forget_authority(self._folder, step.generation)
            self.authorities.pop(step.generation, None)
            log.info("the key of the authority's generation %d is forgotten", step.generation)
        elif isinstance(step, trust_policy.ReportMaterial):
            await self._ledger.propose(commands.ReportTrust(**step.fields, at=now_s), COMMIT_TIMEOUT_S)
        elif isinstance(step, trust_policy.AnnounceAddress):
            log.info("telling the others where this host is reached: %s", step.listens)
            # Under a new key: a data directory that was left behind, or copied, is believed no more.
            ensure_host_key(self._folder, anew=True)
            moved = commands.ChangeMember(self._host_id, at=now_s, addresses=step.listens)
            await self._ledger.propose(moved, COMMIT_TIMEOUT_S)
        elif isinstance(step, trust_policy.AskForCertificate):
            log.info("asking for a certificate: %s", step.why)
            addresses = list(self.view().addresses)
            asked = commands.RequestCertificate(self._host_id, step.csr.hex(), addresses, at=now_s)
            await self._ledger.propose(asked, COMMIT_TIMEOUT_S)
            self._renew_now = False
        else:
            self._log_problem(step)

    def _take(self, material: HostMaterial) -> None:
        store_material(self._folder, material)
        self.material = material
        self._changed(material)
        for name in NETS:
            self._server.cast(name, MaterialChanged())

    def _log_problem(self, step: trust_policy.LogProblem) -> None:
        text = f"{step.about}: {step.error}"
        if text not in self._problems_logged:
            if len(self._problems_logged) > 100:
                self._problems_logged.clear()
            self._problems_logged.add(text)
            self._server.log.warning("%s", text)

    # -- for the others

    async def _do_for_others(self, step: trust_policy.HolderStep) -> None:
        now_s = time()
        if isinstance(step, trust_policy.LogProblem):
            self._log_problem(step)
            return
        if isinstance(step, trust_policy.Publish):
            command: Command = commands.PublishBundle(step.bundle.to_plain(), at=now_s)
            self._server.log.info("the trust bundle, version %d: %s", step.bundle.version, step.why)
        elif isinstance(step, trust_policy.Seal):
            sealed = seal_authority(step.authority, step.certificate).hex()
            generation = step.authority.generation
            command = commands.SealAuthority(step.host_id, generation, step.fingerprint, sealed, at=now_s)
            self._server.log.info("sending the key of the authority's generation %d to %s", generation, step.host_id)
        else:
            authority = self.signing
            if authority is None:
                return
            certificate = authority.issue(step.request, now_s, x509.random_serial_number())
            fields = trust_policy.issued_fields(certificate)
            command = commands.IssueCertificate(step.host_id, step.number, **fields, at=now_s)
            self._server.log.info("a certificate for %s", step.host_id)
        await self._ledger.propose(command, COMMIT_TIMEOUT_S)

    # -- what people ask for

    def renew(self, new_key: bool) -> None:
        """Ask for a certificate now, with a new key or the same."""
        if new_key:
            ensure_host_key(self._folder, anew=True)
        self._renew_now = True
        self.look()

    async def rotate(self) -> dict[str, Any]:
        """Introduce the next generation of the authority; the rest follows by itself. Raises WrongState."""
        old = self.signing
        if old is None:
            raise self.no_authority_key("rotate the authority")
        now_s = time()
        new = create_authority(
            old.cluster_id, new_private_key(), now_s, x509.random_serial_number(), old.generation + 1
        )
        bundle = self.material.bundle.introduce(
            new.certificate, old.endorse(new.certificate), new.endorse(old.certificate)
        )
        # The key first: a bundle with an authority whose key nobody has could never be switched to.
        store_authority(self._folder, new, ensure_wrap_key(self._folder / WRAP_FILE))
        try:
            await self._ledger.propose(commands.PublishBundle(bundle.to_plain(), at=now_s), leaderless_s=LEADERLESS_S)
        except WrongState:
            forget_authority(self._folder, new.generation)
            raise
        self.authorities[new.generation] = new
        self.look()
        return {"generation": new.generation, "fingerprint": new.fingerprint}

    async def call_off(self) -> dict[str, Any]:
        """Give up a rotation that has not come to its switch. Raises WrongState."""
        waiting = next((each for each in self.material.bundle.authorities if each.state == "waiting"), None)
        if waiting is None:
            raise WrongState("no rotation can be called off", found="no authority waits to sign")
        bundle = self.material.bundle.retire(waiting.generation)
        await self._ledger.propose(commands.PublishBundle(bundle.to_plain(), at=time()), leaderless_s=LEADERLESS_S)
        return {"generation": waiting.generation, "fingerprint": waiting.fingerprint}

    def no_authority_key(self, what: str) -> WrongState:
        """The refusal of a host without the authority's key, which names those that have it."""
        can = [f"{self._ledger.members[id]['addresses'].get('join', id)}" for id in self.holders]
        return WrongState(
            "this host does not have the authority's key",
            asked=what,
            found=self._host_id,
            hint=f"members that have it: {', '.join(can) or 'none has told yet; try again in a moment'}",
        )

    def shown(self) -> dict[str, Any]:
        """The cluster's trust as the API shows it."""
        view, bundle = self.view(), self.material.bundle
        found = trust_policy.rotation(view)
        return {
            "cluster_id": bundle.cluster_id,
            "version": bundle.version,
            "fingerprint": bundle.signing.fingerprint,
            "rotation_due": bundle.rotation_due(view.now_s),
            "authorities": [
                {
                    "generation": each.generation,
                    "state": each.state,
                    "fingerprint": each.fingerprint,
                    "valid_until": each.certificate.not_valid_after_utc.timestamp(),
                    "holders": holders(view.trust, each.generation),
                }
                for each in bundle.authorities
            ],
            "rotation": {"next": found.step, "waits_for": found.waits_for},
            "hosts": [self._shown_host(host_id, view) for host_id in sorted(view.members)],
        }

    def _shown_host(self, host_id: str, view: trust_policy.TrustView) -> dict[str, Any]:
        record = view.trust.get(host_id, {})
        return {
            "node_id": host_id,
            "node": view.members[host_id]["node"],
            "generation": record.get("generation") or None,
            "valid_until": record.get("valid_until") or None,
            "bundle_version": record.get("bundle_version", 0),
            "keys": record.get("keys", []),
            "asks": record.get("request") is not None,
        }


def _name(step: trust_policy.HolderStep) -> str:
    """The name of a step, the same on every host that sees it."""
    if isinstance(step, trust_policy.Issue):
        return f"issue {step.host_id} {step.number}"
    if isinstance(step, trust_policy.Seal):
        return f"seal {step.host_id} {step.authority.generation}"
    return f"publish {step.bundle.version}" if isinstance(step, trust_policy.Publish) else step.about
