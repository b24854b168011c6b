"""Anti-entropy: what a replica says to which other one, so that all come to hold the same. Decides only.

Three ways, from the cheapest. A new delta is *pushed* to a few peers that are not known to have it, and they pass it
on. Each round begins with a few peers' *digests*: 16 bytes of hash while all is equal, version vectors when not, then
intervals of what is missing, without gaps, one set under way to a peer, acknowledged when they are on its disk. What
the log has no more comes by a *walk* down a Merkle tree (walk.py).

Almeida, Shoker, Baquero, "Delta state replicated data types" (acknowledged intervals); Demers et al., "Epidemic
algorithms for replicated database maintenance", 1987 (push beside anti-entropy).

Whoever owns this carries out the instructions, and says when what was taken is durable (``committed``). Until then it
is neither acknowledged nor told to anybody: a peer that believed in it would not send it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actorgrid.errors import ActorGridError, BadRequest, NotSupported, Overloaded

from .assembly import Assembly
from .causal import Replica
from .delta_log import DeltaLog, DottedDelta
from .exchange import (
    COUNTED,
    REASONS,
    Dice,
    GossipLimits,
    Holding,
    Instruction,
    Peer,
    Send,
    TakeDeltas,
    TakeLevel,
    TakeNewEpoch,
    TakeState,
    TakeVector,
)
from .fresh import FreshDeltas
from .key_tree import KeyTree
from .packets import (
    Ack,
    Below,
    DeltaRun,
    Deltas,
    Descend,
    Digest,
    Fragment,
    Listing,
    Message,
    States,
    VectorTold,
    decode_message,
    encode,
    fragments,
)
from .peer_choice import PeerChoice
from .retirement import NOBODY, RetiredOrigins, same_as_told
from .types import DELTAS, MAX_DRIFT_US, Crdt, decode_foreign
from .version_vector import MAX_ORIGINS, Vector, lag, vector_hash
from .walk import Walk, answer_descend, answer_listing


class AntiEntropy:
    """One replica's part. *tree* is of its *states* in memory; *dice* decides whom it speaks to."""

    def __init__(
        self,
        me: Replica,
        vector: Vector,
        rows: Iterable[DottedDelta],
        tree: KeyTree,
        states: Holding,
        dice: Dice,
        limits: GossipLimits,
    ) -> None:
        self.me = me
        """Under which name the next local delta is made; nothing may be staged when it changes."""
        self.vector: Vector = dict(vector)
        """What is durable here. Not to be changed."""
        self.limits = limits
        self.retired = NOBODY
        """Origins of which nothing is counted here any more. Not to be changed."""
        self.known = NOBODY
        """The same as the ledger has it: whoever is not so far takes no deltas of theirs, only states."""
        self.members: frozenset[str] = frozenset((me[0],))
        self.choice = PeerChoice(me[0], dice, limits)
        self.peers: dict[str, Peer] = {}
        self.refused = dict.fromkeys(REASONS, 0)
        self.counts = dict.fromkeys(COUNTED, 0)
        self._tree = tree
        self._states_held = states
        self._dice = dice
        self._assembly = Assembly(limits.partial_peers, limits.patience_rounds)
        self.log = DeltaLog(limits.log_bytes)
        for row in rows:
            if row.sequence <= self.vector.get(row.origin, 0):
                self.log.add(row)
        self._staged: Vector = {}
        self._rows: list[list[DottedDelta]] = []
        """What is staged, in runs of one origin."""
        self._acks: dict[str, dict[Replica, None]] = {}
        self._fresh = FreshDeltas()
        self._hash: bytes | None = None
        self._walk: Walk | None = None
        self._message = 0

    # -- what the owner does

    def next_sequence(self) -> int:
        """The sequence of the next local delta."""
        return self._held(self.me) + 1

    def local(self, key: str, delta: bytes) -> DottedDelta:
        """A local mutation, with its dot; the owner makes it durable."""
        row = DottedDelta(self.me, self.next_sequence(), key, delta)
        self._stage(row)
        return row

    def last_staged(self) -> tuple[Replica, int]:
        """The dot of the last local delta."""
        return self.me, self._held(self.me)

    def retire(self, retired: RetiredOrigins, known: RetiredOrigins) -> None:
        """What is retired here, on the disk, and by the ledger. Nothing may be staged."""
        if retired != self.retired or known != self.known:
            self._walk = None  # what it compares is of another level, or of one that is behind by now
        if retired != self.retired:
            self._hash = None
            for origin in self.vector.keys() - retired.without(self.vector).keys():
                del self.vector[origin]
                self.log.forget(origin)
            self._fresh.retire(retired)
            for peer in self.peers.values():
                peer.retire(retired)
        self.retired, self.known = retired, known

    def set_members(self, members: Iterable[str], sites: Mapping[str, str] | None = None) -> None:
        """The hosts of the cluster, ourselves included, and their sites. Others are neither heard nor spoken to."""
        self.members = frozenset({*members, self.me[0]})
        self.choice.set_members(self.members, sites or {})
        for gone in self.peers.keys() - self.members:
            del self.peers[gone]
        self._assembly.keep_only(self.members)
        if self._walk is not None and self._walk.peer not in self.members:
            self._walk = None

    def committed(self) -> list[Instruction]:
        """All that was staged is durable: it counts from here on, is acknowledged, and may be told to others."""
        for run in self._rows:
            self.log.extend(run)
            self._fresh.add(run[0], self.me, self.choice)
        rows, self._rows = self._rows, []
        self._fresh.settled()
        if rows or self._staged:
            self.vector.update(self._staged)
            self._staged.clear()
            self._hash = None
        found: list[Instruction] = []
        acks, self._acks = self._acks, {}
        for name, origins in acks.items():
            if name in self.peers:
                told = {origin: self.vector[origin] for origin in origins if origin in self.vector}
                found += self._send(name, Ack(told))
        return found

    def rolled_back(self) -> None:
        """What was staged could not be made durable, and memory is what the disk holds again."""
        self._staged.clear()
        self._rows.clear()
        self._acks.clear()
        self._fresh.settled()
        self._walk = None  # what it compared may be gone

    def round(self) -> list[Instruction]:
        """Begin a round; call it in even intervals, with nothing staged."""
        self.counts["rounds"] += 1
        self._tree.work(self.limits.tree_digests_a_round)
        found: list[Instruction] = []
        self._assembly.round()
        for name, peer in self.peers.items():
            peer.pass_round(self.choice.patience_rounds(name))
        if self._walk is not None:
            again = self._walk.round()
            if again is None:
                self.counts["walks_given_up"] += 1
                self._walk = None
            else:
                for question in again:
                    found += self._send(self._walk.peer, question)
        digest = Digest(self._vector_hash(), self._root(), self.retired.level)
        for name in self.choice.begin_round():
            found += self._send(name, digest)
        return found

    def ask(self, name: str) -> list[Instruction]:
        """Ask a peer for its vector, also if it is as ours."""
        return self._send(name, self._told(self._peer(name).level, ask=True, confirm=True))

    def push(self) -> list[Instruction]:
        """Offer what is new and durable to a few peers that are not known to have it; a relay, what is of its own site
        to the other sites too."""
        found: list[Instruction] = []
        choice = self.choice
        afar = self._fresh.take_afar()
        for name in choice.bring_to() if afar else ():
            found += self._offer(name, afar)
        fresh = self._fresh.take_near()
        without = self._without(fresh, choice.near) if fresh else []
        for name in without if choice.few else choice.some(without):
            found += self._offer(name, fresh)
        return found

    def offer_to_all(self, origin: Replica, sequence: int) -> list[Instruction]:
        """Offer one origin's deltas, from *sequence* on, to all peers that are not known to have them."""
        fresh = {origin: sequence}
        found: list[Instruction] = []
        for name in self._without(fresh, self.choice.others):
            found += self._offer(name, fresh)
        return found

    def _without(self, fresh: Vector, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if any(self._peer(name).known.get(origin, 0) < self.vector[origin] for origin in fresh)
        ]

    @property
    def walking(self) -> bool:
        """Whether a repair is under way here."""
        return self._walk is not None

    # -- what comes

    def receive(self, name: str, packet: bytes, now_us: int) -> list[Instruction]:
        """A packet of member *name*, at *now_us* since 1970. What is wrong with it is counted and changes nothing."""
        self.counts["received_packets"] += 1
        self.counts["received_bytes"] += len(packet)
        if name not in self.members or name == self.me[0]:
            self.refused["no_member"] += 1
            return []
        self.choice.heard(name)
        try:
            message = decode_message(packet)
            if isinstance(message, Fragment):
                whole = self._assembly.add(name, message)
                if whole is None:
                    return []
                message = decode_message(whole)
            return self._took(name, message, now_us)
        except NotSupported:
            self.refused["version"] += 1
        except Overloaded:
            self.refused["too_many_fragments"] += 1
        except ActorGridError:
            self.refused["malformed"] += 1
        return []

    def _took(self, name: str, message: Message, now_us: int) -> list[Instruction]:
        match message:
            case Digest():
                return self._digest(name, message)
            case VectorTold():
                return self._vector_told(name, message)
            case Deltas():
                return self._deltas(name, message, now_us)
            case Ack():
                return self._ack(name, message)
            case Descend() | Listing():
                return self._answer(name, message)
            case Below():
                if self._walk is None or not self._walk.belongs(name, message):
                    return []
                self._walk.below(message)
                return self._go_on_walking()
            case States():
                return self._states(name, message, now_us)
            case Fragment():
                self.refused["malformed"] += 1  # a fragment of fragments
        return []

    def _digest(self, name: str, digest: Digest) -> list[Instruction]:
        peer = self._peer(name)
        if digest.vector_hash != self._vector_hash() or digest.level != self.retired.level:
            self.counts["other_levels"] += digest.level != self.retired.level
            return self._send(name, self._told(digest.level, ask=True))
        peer.tell(dict(self.vector), digest.level, self.counts["rounds"])
        root = self._root()
        if digest.root and root and digest.root != root:
            # Equal vectors and other states: one of us was told counts that are not true, or lost what it had.
            return self._begin_walk(name, None, dict(self.vector), self.retired)
        return []

    def _vector_told(self, name: str, told: VectorTold) -> list[Instruction]:
        if told.vector.get(self.me, 0) > self._held(self.me):
            return self._forged()
        peer = self._peer(name)
        # Not joined with what was known: whoever lost its disk tells less than before.
        vector = self.retired.without(told.vector)
        peer.tell(vector, told.retired.level, self.counts["rounds"])
        if not told.ask or all(told.vector.get(origin, 0) >= upto for origin, upto in peer.in_flight.items()):
            peer.in_flight = {}  # it came, or did not fit what it has
        found: list[Instruction] = []
        behind = lag(vector, self.vector)
        missing_here = bool(behind)
        # Of what the ledger says is retired we take no deltas, so what we lack of it comes with the states of another.
        there = same_as_told(told.retired, self.retired, self.known)
        rises = there is not None and there.level > self.retired.level
        if told.ask and (missing_here or told.confirm or there is not self.retired):
            found += self._send(name, self._told(told.retired.level))
        # Deltas of origins that find no room in our vector are not taken: what they did has to come as states.
        if there is not None and (rises or (missing_here and (told.repair or not all(map(self._takes, behind))))):
            found += self._begin_walk(name, told.opening, dict(vector), there)
        lacking = [origin for origin in lag(self.vector, peer.known) if origin not in self.known]
        if lacking:
            found += self._serve(name, lacking, repair=not told.repair)
        return found

    def _deltas(self, name: str, deltas: Deltas, now_us: int) -> list[Instruction]:
        peer = self._peer(name)
        me = self.me[0].encode()
        checked: list[tuple[DeltaRun, list[Crdt]]] = []
        found: list[Instruction] = []
        late = {run.origin: run.first + len(run.deltas) - 1 for run in deltas.runs if run.origin in self.known}
        if late:  # of who has not heard that all have them; if we have not, they come with states
            self.counts["deltas_retired"] += 1
            found += self._send(name, Ack(late))
        for run in deltas.runs:  # all of them, before anything is touched
            if run.origin in late:
                continue
            last = run.first + len(run.deltas) - 1
            if run.origin == self.me and last > self._held(self.me):
                return self._forged()
            if run.origin[0] not in self.members:
                self.refused["forged"] += 1
                return []
            skip = max(0, self._held(run.origin) + 1 - run.first)
            decoded = DELTAS.decode(run.deltas, skip)
            # Who is not named in the bytes is not claimed for in them: most deltas need no closer look.
            if any(
                me in data and self._claims_ours(key, delta)
                for (key, data), delta in zip(run.deltas[skip:], decoded, strict=True)
            ):
                return self._forged()
            checked.append((run, decoded))
        if self.choice.is_far(name):
            self._fresh.came_from_afar(run.origin for run, _ in checked)
        origins = self._acks.setdefault(name, {})
        gap = False
        for run, decoded in checked:
            held = self._held(run.origin)
            if not held and not self._room_for(run.origin):
                self.refused["vector_full"] += 1
                continue
            if run.first > held + 1:
                gap = True
                continue
            origins[run.origin] = None
            self.counts["deltas_repeated"] += len(run.deltas) - len(decoded)
            # What another run of this message brought is not taken twice.
            skip = max(len(run.deltas) - len(decoded), held + 1 - run.first)
            left = decoded[skip - len(run.deltas) + len(decoded) :]
            # What is dated ahead is offered again until our clock has come near, and what follows it has to wait.
            fresh = left[: DELTAS.first_later(left, now_us + MAX_DRIFT_US)]
            self.refused["future"] += len(fresh) < len(left)
            if fresh:
                pairs = run.deltas[skip : skip + len(fresh)]
                rows = [
                    DottedDelta(run.origin, sequence, key, data)
                    for sequence, (key, data) in enumerate(pairs, run.first + skip)
                ]
                self._staged[run.origin] = rows[-1].sequence
                self._rows.append(rows)
                self.counts["deltas_taken"] += len(rows)
                found.append(TakeDeltas(rows, fresh))
            last = run.first + len(run.deltas) - 1
            if last > peer.known.get(run.origin, 0):
                peer.known[run.origin] = last  # it tells durable ones only
        if gap:
            self.counts["gaps"] += 1
            if not peer.gap_told:
                peer.gap_told = True
                found += self._send(name, self._told(peer.level))
        if not origins:
            del self._acks[name]
        return found

    def _ack(self, name: str, ack: Ack) -> list[Instruction]:
        if ack.vector.get(self.me, 0) > self._held(self.me):
            return self._forged()
        peer = self._peer(name)
        for origin, count in ack.vector.items():
            if origin in self.vector and count > peer.known.get(origin, 0):
                peer.known[origin] = count
        if not all(peer.known.get(origin, 0) >= upto for origin, upto in peer.in_flight.items()):
            return []
        open_origins = {**peer.in_flight, **peer.backlog}
        peer.in_flight, peer.backlog = {}, {}
        wanted = (
            [origin for origin in lag(self.vector, peer.known) if origin not in self.known]
            if peer.told
            else [origin for origin in open_origins if self._lacks(peer, origin)]
        )
        return self._serve(name, wanted, repair=peer.told) if wanted else []

    # -- intervals

    def _lacks(self, peer: Peer, origin: Replica) -> bool:
        return peer.known.get(origin, 0) < self.vector.get(origin, 0)

    def _offer(self, name: str, fresh: dict[Replica, int]) -> list[Instruction]:
        """Push: of a peer that told nothing yet it is assumed that it has what came before."""
        peer = self._peer(name)
        lacking = [origin for origin in fresh if self._lacks(peer, origin)]
        for origin in lacking:
            if not peer.told and origin not in peer.known:
                peer.assumed[origin] = fresh[origin] - 1
        return self._serve(name, lacking, repair=False)

    def _serve(self, name: str, origins: list[Replica], repair: bool) -> list[Instruction]:
        """Send intervals of what the peer lacks, one set at a time; where the log has no more of it, have it walk."""
        peer = self._peer(name)
        if peer.in_flight:
            peer.backlog.update(dict.fromkeys(origins))
            return []
        room = min(self.limits.packet_bytes, self._left_bytes(name))
        runs: list[DeltaRun] = []
        walk = False
        for number, origin in enumerate(origins):
            if room <= 0:
                peer.backlog.update(dict.fromkeys(origins[number:]))
                break
            # Of hosts that left, the receiver takes no deltas: anybody could have made them up.
            after = max(peer.known.get(origin, 0), peer.assumed.get(origin, 0))
            rows = self.log.interval(origin, after, room) if origin[0] in self.members else None
            if not rows:
                walk = True
                continue
            if runs and rows[0].wire_size > room:
                continue
            runs.append(DeltaRun(origin, rows[0].sequence, tuple((row.key, row.delta) for row in rows)))
            peer.in_flight[origin] = rows[-1].sequence
            room -= sum(row.wire_size for row in rows)
        found: list[Instruction] = []
        if runs:
            peer.waited_rounds = 0
            found += self._send(name, Deltas(tuple(runs)))
        elif walk and repair:
            # After the intervals, so that the walk finds less to do.
            found += self._send(name, self._told(peer.level, repair=True))
        return found

    def _left_bytes(self, name: str) -> int:
        """What may yet go to that peer in this round."""
        return self.choice.bytes_a_round(name) - self._peer(name).spent_bytes

    # -- walks

    def _begin_walk(self, name: str, opening: int | None, vector: Vector, retired: RetiredOrigins) -> list[Instruction]:
        if self._walk is not None or not self._tree_ready:
            return []  # the next digest tells again that we differ
        self.counts["walks"] += 1
        self._walk = Walk(self._dice.getrandbits(32), name, opening, vector, self._tree, retired)
        return self._go_on_walking()

    def _go_on_walking(self) -> list[Instruction]:
        walk = self._walk
        if walk is None:
            return []
        found: list[Instruction] = []
        for question in walk.ask():
            found += self._send(walk.peer, question)
        if not walk.done:
            return found
        self._walk = None
        self.counts["walks_ended"] += 1
        if walk.complete:
            taken = {
                origin: count
                for origin, count in sorted(walk.vector.items())
                if count > self._held(origin) and self._room_for(origin)
            }
            for origin, count in taken.items():
                self.log.forget(origin)  # what comes next does not follow the rows it has
                self._staged[origin] = count
            if taken:
                found.append(TakeVector(taken))
            if walk.retired.level > self.retired.level:
                found.append(TakeLevel(walk.retired))
        return found

    def _answer(self, name: str, question: Descend | Listing) -> list[Instruction]:
        """Nodes, or whole states, for a peer that walks our tree; it asks again for what did not fit, or was lost."""
        room = self._left_bytes(name)
        if room <= 0 or not self._tree_ready:
            return []
        opening, level = self.me[1], self.retired.level
        if isinstance(question, Descend):
            return self._send(name, answer_descend(self._tree, opening, level, question))
        found: list[Instruction] = []
        packet_bytes = self.limits.packet_bytes
        for answer in answer_listing(self._tree, self._states_held, opening, level, question, packet_bytes, room):
            found += self._send(name, answer)
        return found

    def _states(self, name: str, answer: States, now_us: int) -> list[Instruction]:
        walk = self._walk
        if walk is None or not walk.belongs(name, answer):
            return []
        decoded = [  # all of them, before anything is touched
            [(key, decode_foreign(data) if data else None) for key, data in states]
            for _path, _after, states in answer.buckets
        ]
        if any(state is not None and self._claims_ours(key, state) for states in decoded for key, state in states):
            return self._forged()
        found: list[Instruction] = []
        for (path, after, _), states in zip(answer.buckets, decoded, strict=True):
            if not walk.states(path, after):
                continue
            for key, state in states:
                if state is None:
                    walk.complete = False
                    continue
                try:
                    state.check_drift(now_us)
                except BadRequest:
                    self.refused["future"] += 1
                    walk.complete = False
                    continue
                self.counts["states_taken"] += 1
                found.append(TakeState(key, state, walk.retired))
        return found + self._go_on_walking()

    # -- bytes

    def _send(self, name: str, message: Message) -> list[Instruction]:
        data = encode(message)
        self._peer(name).spent_bytes += len(data)
        self._message = (self._message + 1) % 2**31
        packets = fragments(data, self._message)
        self.counts["sent_packets"] += len(packets)
        self.counts["sent_bytes"] += sum(map(len, packets))
        return [Send(name, packet) for packet in packets]

    # -- small things

    def _told(self, level: int, ask: bool = False, repair: bool = False, confirm: bool = False) -> VectorTold:
        """Our vector, for a peer of that level: one that is not as far is told what is retired here."""
        retired = self.retired if level < self.retired.level else RetiredOrigins(self.retired.level)
        return VectorTold(self.vector, self.me[1], ask, repair, retired, confirm)

    def _stage(self, row: DottedDelta) -> None:
        self._staged[row.origin] = row.sequence
        last = self._rows[-1] if self._rows else None
        if last is not None and last[-1].origin == row.origin and last[-1].sequence + 1 == row.sequence:
            last.append(row)
        else:
            self._rows.append([row])

    def _held(self, origin: Replica) -> int:
        """The highest sequence that is staged or durable."""
        return self._staged.get(origin) or self.vector.get(origin, 0)

    def _takes(self, origin: Replica) -> bool:
        """Whether deltas of that origin are taken."""
        return origin not in self.known and self._room_for(origin)

    def _room_for(self, origin: Replica) -> bool:
        if self._held(origin):
            return True
        return len(self.vector.keys() | self._staged.keys()) < MAX_ORIGINS - 1  # one is kept for ourselves

    def _claims_ours(self, key: str, found: Crdt) -> bool:
        """Whether it has events of ours that we did not make: joined, they would stand where our next ones belong."""
        claimed = found.highest(self.me)
        return bool(claimed) and claimed > self._states_held.highest(key, found.kind, self.me)

    def _forged(self) -> list[Instruction]:
        self.refused["forged"] += 1
        if self.counts["new_epochs"] >= self.limits.new_epochs:
            return []
        self.counts["new_epochs"] += 1
        return [TakeNewEpoch()]

    def _peer(self, name: str) -> Peer:
        return self.peers.setdefault(name, Peer())

    def _vector_hash(self) -> bytes:
        if self._hash is None:
            self._hash = vector_hash(self.vector)
        return self._hash

    def _root(self) -> bytes:
        """The tree's hash, if that is known without much work."""
        return self._tree.root() if self._tree_ready else b""

    @property
    def _tree_ready(self) -> bool:
        return self._tree.waiting <= self.limits.tree_digests_a_round
