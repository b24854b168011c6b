"""The live supervision tree of the host, asked node by node: who is there, and what each says of itself.

A supervisor tells of its children (WhichChildren); every server tells of itself (Inspect). All are asked at the same
time, so one that hangs costs its own timeout and nobody else's, and is shown with the error instead of its word.

Bounds: a walk shows 1,000 nodes and says how many it left out; it asks the first 256 for their own word, for each costs
this process two descriptors for as long as it lives; 64 are asked at a time; one answer is awaited for 2 s, all
together for 8 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, NoSuchActor, NotFound
from actorgrid.supervisors.inspection import Inspect
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.supervisor import WhichChildren

from .server.bridge import Bridge

ROOT = "host"
NODES_MAX = 1_000
ASKED_MAX = 256
ASKED_AT_ONCE = 64
ANSWER_S = 2.0
WALK_S = 8.0
SUGGESTED_MAX = 3

_CAN_ANSWER = ("up", "stopping")
"""States in which a child's process takes messages; one that starts would keep the question until it has started."""


@dataclass(slots=True)
class TreeChild:
    """One child as its supervisor knows it, with its own word where it was asked and answered.

    ``inspect`` and ``error`` are both None when it was not asked. ``left_out`` counts children beyond the bound.
    """

    name: str
    type: str = "worker"
    kind: str = ""
    restart: str | None = None
    state: str = "up"
    pid: int | None = None
    ref: Ref | None = None
    restarts: int = 0
    last_exit: dict[str, Any] | None = None
    started_at: float | None = None
    inspect: dict[str, Any] | None = None
    error: ActorGridError | None = None
    left_out: int = 0
    children: list[TreeChild] = field(default_factory=list)

    def walk(self) -> Iterator[TreeChild]:
        """Go through this node and all below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)

    def alone(self) -> dict[str, Any]:
        """This node as plain values, without its children."""
        return {
            "name": self.name,
            "type": self.type,
            "kind": self.kind,
            "restart": self.restart,
            "state": self.state,
            "pid": self.pid,
            "address": self.ref.address if self.ref is not None else None,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
            "started_at": self.started_at,
            "inspect": self.inspect,
            "error": self.error.to_dict() if self.error is not None else None,
        }

    def whole(self) -> dict[str, Any]:
        """This node and all below it as plain values."""
        inspect = self.inspect
        if inspect is not None and isinstance(inspect.get("status"), dict):
            # A supervisor's own list of its children says less than the nodes below it.
            inspect = {**inspect, "status": {key: one for key, one in inspect["status"].items() if key != "children"}}
        children = [child.whole() for child in self.children]
        return {**self.alone(), "inspect": inspect, "left_out": self.left_out, "children": children}


class TreeWalk:
    """One look at the tree, from the loop's thread. *everyone*: ask each server, not only the supervisors."""

    def __init__(self, bridge: Bridge, everyone: bool) -> None:
        self.root = TreeChild(ROOT, type="supervisor", ref=Ref("", ROOT))
        self.truncated = False
        self._bridge = bridge
        self._everyone = everyone
        self._nodes = 1
        self._asked = 0
        self._turn = asyncio.Semaphore(ASKED_AT_ONCE)
        self._until_s = 0.0

    async def run(self) -> TreeChild:
        """The root, with all below it; never raises because of a server that does not answer."""
        self._until_s = asyncio.get_running_loop().time() + WALK_S
        await self._look(self.root, ROOT)
        told = self.root.inspect
        self.root.ref = Ref(str(told["address"]), ROOT) if told is not None else None
        if told is not None:
            self.root.pid, self.root.kind = told["pid"], str(told["kind"])
        elif isinstance(self.root.error, NoSuchActor):
            self.root.state = "down"
        return self.root

    async def _look(self, node: TreeChild, to: str | Ref) -> None:
        supervises = node.type == "supervisor"
        if self._asked < ASKED_MAX and (self._everyone or to == ROOT):
            self._asked += 1
            if supervises:
                await asyncio.gather(self._hear(node, to), self._descend(node, to))
            else:
                await self._hear(node, to)
        elif supervises:
            await self._descend(node, to)

    async def _hear(self, node: TreeChild, to: str | Ref) -> None:
        try:
            node.inspect = plain(await self._ask(to, Inspect()))
        except ActorGridError as error:
            node.error = error

    async def _descend(self, node: TreeChild, to: str | Ref) -> None:
        try:
            rows = await self._ask(to, WhichChildren())
        except ActorGridError as error:
            node.error = node.error or error
            return
        for row in rows:
            if self._nodes >= NODES_MAX:
                node.left_out += 1
                self.truncated = True
                continue
            self._nodes += 1
            node.children.append(_child(row))
        await asyncio.gather(
            *(
                self._look(child, child.ref)
                for child in node.children
                if child.ref is not None and child.state in _CAN_ANSWER
            )
        )

    async def _ask(self, to: str | Ref, request: Any) -> Any:
        async with self._turn:
            left_s = self._until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise CallTimeout(
                    f"{to} was not asked: the others took {WALK_S:g} s",
                    hint="ask it alone: actorgrid inspect NAME",
                )
            return await self._bridge.call(to, request, min(ANSWER_S, left_s))


def _child(row: dict[str, Any]) -> TreeChild:
    return TreeChild(
        name=row["name"],
        type=row["type"],
        kind=row["kind"],
        restart=row["restart"],
        state=row["state"],
        pid=row["pid"],
        ref=row["ref"],
        restarts=row["restarts"],
        last_exit=plain(row["last_exit"]),
    )


async def find(bridge: Bridge, name: str) -> TreeChild:
    """The one server that *name* means: a child's id, an address, or a name that a server registered for itself.

    Raises NotFound with the nearest names that are there, and BadRequest when several children have that id.
    """
    root = await TreeWalk(bridge, everyone=False).run()
    nodes = list(root.walk())
    same = [node for node in nodes if name == node.name or (node.ref is not None and name == node.ref.address)]
    if len(same) == 1:
        return same[0]
    if same:
        raise BadRequest(
            f"{len(same)} children are called {name!r}, each of another supervisor",
            asked=name,
            found=", ".join(f"{node.ref.address} ({node.state})" for node in same if node.ref is not None),
            hint="name it by its address",
        )
    try:
        told = plain(await bridge.call(name, Inspect(), ANSWER_S))
    except NoSuchActor:
        raise _unknown(name, [node.name for node in nodes]) from None
    address = str(told["address"])
    known = next((node for node in nodes if node.ref is not None and node.ref.address == address), None)
    return known or TreeChild(str(told["name"]), kind=str(told["kind"]), pid=told["pid"], ref=Ref(address, name))


def _unknown(name: str, known: list[str]) -> NotFound:
    import difflib

    close = difflib.get_close_matches(name[:200], known, n=SUGGESTED_MAX, cutoff=0.5)
    return NotFound(
        "no server of this host is called that",
        asked=name[:200],
        found=f"{len(known)} servers in the tree",
        hint="did you mean " + " or ".join(close) + "?" if close else "actorgrid inspect shows all of them",
    )


def note_starts(nodes: list[TreeChild]) -> None:
    """Fill in when each process was started, from the kernel. Blocks: call it from a thread pool."""
    for node in nodes:
        if node.pid is not None:
            try:
                node.started_at = psutil.Process(node.pid).create_time()
            except psutil.Error:  # it ended meanwhile
                continue


def plain(value: Any) -> Any:
    """*value* as numbers, texts, lists and dictionaries; what is none of those by its text (a Ref, for one)."""
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    return str(value)
