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

from .causal import Replica
from .delta_log import DottedDelta
from .exchange import Instruction, Peer, TakeDeltas, TakeLevel, TakeState, TakeVector
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
    VectorPart,
    VectorTold,
    decode_message,
)
from .retirement import RetiredOrigins, same_as_told
from .standing import Standing
from .types import DELTAS, MAX_DRIFT_US, Crdt, decode_foreign
from .vector_parts import RECENT_MAX
from .version_vector import Vector, lag
from .walk import Walk, answer_descend, answer_listing

NEEDLESS_WALK_ROUNDS = 2
"""So long after a walk that found no difference the next one is with another peer."""


class AntiEntropy(Standing):
    """One replica's part. *tree* is of its *states* in memory; *dice* decides whom it speaks to."""

    _walk: Walk | None = None
    _walked_last = ""
    """With whom the last walk was that ended."""
    _walk_again_in_round = 0

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
            self._parts.forget()
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
            self._parts.changes(self._staged)
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
            if peer.pass_round(self.choice.patience_rounds(name)):
                self.choice.unanswered(name)
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
        return self._ask(name, self._peer(name).level, confirm=True)

    def push(self) -> list[Instruction]:
        """Offer what is new and durable to those whose turn it is to have it from us, and who are not known to have it;
        a relay, what is of its own site to the other sites too."""
        found: list[Instruction] = []
        choice = self.choice
        afar = self._fresh.take_afar()
        for name in choice.bring_to() if afar else ():
            found += self._offer(name, afar)
        offers: dict[str, Vector] = {}
        for origin, sequence in self._fresh.take_near().items():
            for name in self._without({origin: sequence}, choice.pass_on(origin[0])):
                offers.setdefault(name, {})[origin] = sequence
        for name, fresh in offers.items():
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
            case VectorPart():
                return self._vector_part(name, message)
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
            return self._ask(name, digest.level)
        peer.tell(dict(self.vector), digest.level, self.counts["rounds"])
        root = self._root()
        if digest.root and root and digest.root != root:
            # Equal vectors and other states: one of us was told counts that are not true, or lost what it had.
            return self._begin_walk(name, None, dict(self.vector), self.retired)
        return []

    def _vector_told(self, name: str, told: VectorTold) -> list[Instruction]:
        self._peer(name).reads_parts = told.reads_parts
        return self._heard_vector(name, told)

    def _vector_part(self, name: str, part: VectorPart) -> list[Instruction]:
        peer, level = self._peer(name), self.retired.level
        peer.reads_parts = True
        if part.level != level:
            return self._send(name, self._told(part.level, ask=True))
        entries, complete = self._parts.origins(part)
        if entries.get(self.me, 0) > self._held(self.me):
            return self._forged()
        vector = self._parts.whole(part)
        if vector is not None:
            self.counts["vectors_in_part"] += 1
            ask, confirm, retired = part.ask, part.confirm, RetiredOrigins(level)
            return self._heard_vector(name, VectorTold(vector, part.opening, ask, False, retired, confirm))
        self.counts["parts_not_enough"] += 1
        if not part.ask:
            return []  # it answered us, and changed meanwhile: the next digest asks again
        if part.again or not complete:
            return self._send(name, self._told(level, ask=True))
        return self._send_part(name, {*entries, *self._parts.recent(RECENT_MAX)}, ask=True, again=True)

    def _heard_vector(self, name: str, told: VectorTold) -> list[Instruction]:
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
            found += self._answer_vector(name, told.retired.level)
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
                found += self._answer_vector(name, peer.level)
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
        # Not all that it is not known to have: most of that is on its way to it from others.
        wanted = [origin for origin in open_origins if self._lacks(peer, origin)]
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
        if name == self._walked_last and self.counts["rounds"] < self._walk_again_in_round:
            return []
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
        # Who tells that it has something else, and then has not, does so again before others have their turn.
        self._walked_last = walk.peer
        self._walk_again_in_round = self.counts["rounds"] + (0 if walk.differed else NEEDLESS_WALK_ROUNDS)
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
