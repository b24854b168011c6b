"""Runs a transcript: a text file of commands, each followed by the state that it must lead to.

A line that begins with ``> `` is a command; the lines under it are its answer and every node whose state changed.
What they say is what a node is, never which messages brought it there. Commands:

    nodes 1 2 3 [learners=4,5] [SETTING=N]   begin, with these voters
    add 4                                     one more node, without data
    campaign N [pre_vote=no] · propose N WORD [as=CONTEXT]
    read N WORD · transfer N TO · unreachable N PEER · report-snapshot N PEER ok|failed
    change N [add_voter=M] [add_learner=M] [remove=M] [transition=T]
    tick N [TICKS] · tick-all TICKS           the latter lets happen what comes of each tick
    show-paused                               from here on, say which followers are sent nothing before they answer
    process N · begin N · finish N            a whole Ready; take it; store and confirm it
    deliver [to=N] [from=N] [kind=K] · drop ...    what is on its way now, and what is sent later not
    stabilize [N ...]                         process and deliver until nothing is left to do
    isolate N · cut A-B ... · heal · crash N · restart N · compact N [keep=K] · lose-tail N
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from actorgrid.actors.raft.messages import ConfState, Dropped, Message, ProposalAccepted
from tests.raft.cluster import Cluster

SETTINGS = {"learners"}


def run(text: str) -> str:
    """*text* with what really happens under each command."""
    return Transcript().run(text)


class Transcript:
    def __init__(self) -> None:
        self.cluster = Cluster([])
        self.shown: dict[int, str] = {}
        self.paused = False  # whether a probe that is on its way is shown
        self.commands: dict[str, Callable[[list[str], dict[str, str]], object]] = {
            "nodes": self.nodes,
            "add": lambda words, _: self.cluster.add(int(words[0])) and None,
            "campaign": lambda words, options: (
                self.cluster[int(words[0])].campaign(pre_vote=options.get("pre_vote") != "no") and None
            ),
            "propose": lambda words, options: self.cluster.propose(
                int(words[0]), words[1], options.get("as", "").encode()
            ),
            "read": lambda words, _: self.cluster.read(int(words[0]), words[1].encode()),
            "transfer": lambda words, _: self.cluster[int(words[0])].transfer_leader(int(words[1])),
            "unreachable": lambda words, _: self.cluster[int(words[0])].report_unreachable(int(words[1])),
            "report-snapshot": lambda words, _: self.cluster[int(words[0])].report_snapshot(
                int(words[1]), words[2] == "ok"
            ),
            "change": self.change,
            "show-paused": lambda *_: self.show_paused(),
            "tick": lambda words, _: self.cluster.tick(int(words[0]), int(words[1]) if words[1:] else 1),
            "tick-all": lambda words, _: self.cluster.tick_all(int(words[0])),
            "process": lambda words, _: self.cluster.process(int(words[0])) and None,
            "begin": lambda words, _: self.cluster.begin(int(words[0])) and None,
            "finish": lambda words, _: self.cluster.finish(int(words[0])),
            "deliver": lambda _, options: self.deliver(options),
            "drop": lambda _, options: self.take(options) and None,
            "stabilize": lambda words, _: self.cluster.stabilize(*map(int, words)),
            "isolate": lambda words, _: self.cluster.isolate(int(words[0])),
            "cut": self.cut,
            "heal": lambda *_: self.cluster.heal(),
            "crash": lambda words, _: self.cluster.crash(int(words[0])),
            "restart": lambda words, _: self.cluster.restart(int(words[0])),
            "compact": lambda words, options: self.cluster.compact(int(words[0]), int(options.get("keep", 0))),
            "lose-tail": lambda words, _: self.cluster.lose_tail(int(words[0])),
        }

    def run(self, text: str) -> str:
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("> "):
                lines += [line, *self.happens(line[2:].split())]
            elif not line or line.startswith("#"):
                lines.append(line)
        return "\n".join(lines) + "\n"

    def happens(self, words: list[str]) -> list[str]:
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words[1:] if "=" not in word]
        found = self.commands[words[0]](plain, options)
        answer = []
        if isinstance(found, ProposalAccepted):
            where = f" {found.index}" if found.index else ", sent to the leader" if found.forwarded else ""
            answer = [f"  accepted{where}"]
        elif isinstance(found, Dropped):
            answer = [f"  dropped: {found.reason}"]
        now = {number: self.state(number) for number in {*self.cluster.nodes, *self.cluster.down}}
        changed = [now[number] for number in sorted(now) if self.shown.get(number) != now[number]]
        self.shown = now
        return answer + changed

    def nodes(self, words: list[str], options: dict[str, str]) -> None:
        learners = [int(word) for word in options.get("learners", "").split(",") if word]
        settings = {name: int(value) for name, value in options.items() if name not in SETTINGS}
        self.cluster = Cluster(map(int, words), learners, **settings)

    def change(self, words: list[str], options: dict[str, str]) -> ProposalAccepted | Dropped:
        transition = options.pop("transition", "auto")
        changes = [(kind, int(node)) for kind, nodes in options.items() for node in nodes.split(",")]
        return self.cluster.change(int(words[0]), *changes, transition=transition)  # type: ignore[arg-type]

    def show_paused(self) -> None:
        self.paused = True

    def cut(self, words: list[str], _: dict[str, str]) -> None:
        for word in words:
            a, b = map(int, word.split("-"))
            self.cluster.cut |= {(a, b), (b, a)}

    def take(self, options: dict[str, str]) -> list[Message]:
        def meant(message: Message) -> bool:
            return (
                options.get("to", str(message.to)) == str(message.to)
                and options.get("from", str(message.sender)) == str(message.sender)
                and options.get("kind", message.kind) == message.kind
            )

        taken = [message for message in self.cluster.wire if meant(message)]
        self.cluster.wire = [message for message in self.cluster.wire if not meant(message)]
        return taken

    def deliver(self, options: dict[str, str]) -> None:
        for message in self.take(options):
            self.cluster.deliver(message)

    def state(self, number: int) -> str:
        if number in self.cluster.down:
            return f"  {number} down"
        node = self.cluster.nodes[number]
        status = node.core.status()
        parts = [f"  {number} {status.role} term {status.term}"]
        parts.append(f"commit {status.commit} applied {status.applied}")
        parts.append(f"log {self.terms(number)}")
        if members(status.config) != members(self.cluster.members):
            parts.append(members(status.config))
        if status.progress:
            peers = (
                f"{peer}:{'damaged' if known.damaged else known.match}{' snapshot' * (known.state == 'snapshot')}"
                f"{' paused' * (self.paused and known.paused)}"
                for peer, known in sorted(status.progress.items())
            )
            parts.append(f"followers {' '.join(peers)}")
        if status.transferee:
            parts.append(f"handing over to {status.transferee}")
        if status.damaged:
            parts.append("damaged")
        if node.read_states:
            parts.append("reads " + " ".join(f"{read.context.decode()}@{read.index}" for read in node.read_states))
        for request in node.dropped:
            parts.append(f"{request.kind} {request.context.decode()} dropped: {request.reason}")
        return ", ".join(parts)

    def terms(self, number: int) -> str:
        """The log as runs of one term: ``1-3@1 4@2``; what is compacted is a number in brackets."""
        log = self.cluster.nodes[number].log()
        runs = []
        for term, group in groupby(log, key=lambda entry: entry.term):
            entries = list(group)
            first, last = entries[0].index, entries[-1].index
            runs.append(f"{first}@{term}" if first == last else f"{first}-{last}@{term}")
        behind = self.cluster[number].status().first_index - 1
        return " ".join([*([f"[{behind}]"] if behind else []), *runs]) or "empty"


def members(state: ConfState) -> str:
    parts = ["voters " + " ".join(map(str, state.voters))]
    if state.voters_outgoing:
        parts.append("outgoing " + " ".join(map(str, state.voters_outgoing)))
    if state.learners:
        parts.append("learners " + " ".join(map(str, state.learners)))
    if state.learners_next:
        parts.append("learners next " + " ".join(map(str, state.learners_next)))
    return " ".join(parts)
