"""A shard in a process of its own: a server of the actor layer whose loop gives the light processes their turns.

Several of them under one supervisor use several cores. They find each other by the names of the boot (``registry.py``),
and what they send each other goes by ``mesh_carrier.py``. One that is killed is started again by its supervisor with
what its ``arguments`` say; it is another shard then, with another number, and nothing of the one before: its processes'
monitors, links and callers are told in all shards, with the reason that the kernel knows.

Names of light processes hold on the whole host: a name is taken in the boot's registry, too. Groups are told from shard
to shard, as ``pg`` does: a membership is seen elsewhere a moment later.

Bounds: 1,000 names and groups' shards, because a process of the operating system may have no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import CLOCK_BOOTTIME, clock_gettime
from typing import Any, ClassVar

from actorgrid.errors import ActorGridError, BadRequest, NameTaken
from actorgrid.hotpath.light import Pid, ProcessCall, ShardAddress

from ..exits import ExitReason
from ..ref import Ref
from ..runtime import Timer, Waiter
from ..server import Server, handles
from ..signals import Down
from .inspecting import ProcessInfo, SortKey, shard_figures, top
from .mesh_carrier import LightBatch, MeshCarrier
from .names import name_taken
from .shard_groups import GroupedShard

GROUP = "light shards"
TURN_NS = 2_000_000
"""How long light processes have turns before what came for the server is looked at."""


@dataclass(frozen=True, slots=True)
class ShardCall:
    """Call a light process from outside of the shards; answered with its answer."""

    to: Pid | str
    request: Any
    timeout_s: float | None = 5.0


@dataclass(frozen=True, slots=True)
class ShardSend:
    """Send a light process a message from outside; ``exit`` instead, with a reason."""

    to: Pid | str
    message: Any
    as_exit: bool = False


@dataclass(frozen=True, slots=True)
class ShardStart:
    """Start a light process in this shard; answered with its Pid when its ``init`` has ended."""

    kind: Any
    arguments: tuple[Any, ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ShardTop:
    """The processes of this shard with most of one thing: a list of ProcessInfo."""

    by: SortKey = "reductions"
    count: int = 10


@dataclass(frozen=True, slots=True)
class ShardLookup:
    """Who has the name; ``None`` when nobody has. With *members*, those of the group of that name."""

    name: str
    members: bool = False


@dataclass(frozen=True, slots=True)
class ShardHello:
    """Says which shard a process is."""

    address: ShardAddress
    answer: bool
    """Whether the other is to say the same."""


class ServedShard(GroupedShard):
    """A shard whose names are the host's, and whose groups are those of all shards."""

    def __init__(self, server: ShardServer, host: str, number: int) -> None:
        super().__init__(host, number, clock=server.clock_ns)
        self.server = server
        self.on_wake = server.ask_for_turns
        self.names.on_freed = server.give_name_back

    def register(self, name: str, pid: Pid) -> None:
        """Give a process of this shard a name of the host. Raises NameTaken, NoSuchActor, BadRequest, Overloaded."""
        process = self.core.find(pid) or self._nobody(pid)
        if self.names.names.get(name) == pid:
            return
        holder = self.whereis(name)
        if holder is not None:
            raise name_taken(name, holder)
        self.server.take_name(name, pid)
        try:
            self.names.register(name, process)
        except ActorGridError:
            self.server.give_name_back(name)
            raise

    def group_shards(self) -> Iterable[ShardAddress]:
        """The others that are known."""
        return self.server.carrier.refs


class ShardServer(Server):
    """The server around a shard. Arguments: the name of the host; then ``None``, or a class and its arguments to start.

    What is started so is the root of the shard: when it ends, other than in order, the whole shard does.
    """

    name = "shard"
    max_handler_s: ClassVar[float] = 10.0

    async def start(self) -> None:
        """Make the shard, find the others, start the root."""
        host, root, *arguments = self.arguments or ("local", None)
        self._timer: Timer | None = None
        self._timer_due = 0.0
        self._running = False
        self.shard = ServedShard(self, host, self._new_number())
        self.carrier = MeshCarrier(self, self.shard.core.address)
        self.carrier.refuse_call = self._refuse_call  # type: ignore[method-assign]
        self.shard.carrier = self.carrier
        self.join(GROUP)
        for ref in self.members(GROUP):
            if ref != self.me:
                self.cast(ref, ShardHello(self.shard.core.address, True))
        if root is not None:
            self._root = await self.start_light(ShardStart(root, tuple(arguments)))
            self._watch_root()

    def stop(self, reason: str) -> None:
        """End all light processes in order."""
        self.shard.close()
        self.carrier.flush()

    def clock_ns(self) -> int:
        """The clock of the process's loop."""
        return int(self.runtime.monotonic() * 1e9)

    def _new_number(self) -> int:
        """A number that no shard of this boot has had: the milliseconds since the machine's boot, or a later one."""
        number = int((clock_gettime(CLOCK_BOOTTIME) if not self.runtime.in_place else self.runtime.boottime()) * 1000)
        while True:
            try:
                self.register(f"light shard {number}")
                return number
            except NameTaken:
                number += 1

    def _watch_root(self) -> None:
        root = self.shard.core.find(self._root)
        if root is None:
            self.leave(ExitReason("error", "the root of the shard ended as it started"))
            return

        async def watch(me: Any) -> None:
            monitor = me.monitor(self._root)
            down = await me.receive()
            if down.monitor == monitor:
                # Not from within the turns of the shard, which ends with us.
                self.runtime.after(0.0, lambda: self.leave(down.reason))

        self.shard.spawn(watch)
        self.ask_for_turns()

    # -- turns

    def ask_for_turns(self) -> None:
        """Give turns soon."""
        self._at(0.0)

    def _at(self, delay_s: float) -> None:
        due = self.runtime.monotonic() + delay_s
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self.runtime.after(delay_s, self._turns)

    def _turns(self) -> None:
        self._timer = None
        self.give_turns()

    def give_turns(self) -> None:
        """Give turns for a while, send what came of them, and see to it that we come again when there is more."""
        if self._running or self.shard.closed:
            return
        self._running = True
        try:
            until = self.clock_ns() + TURN_NS
            while self.shard.run() and self.clock_ns() < until and not self.shard.closed:
                pass
        finally:
            self._running = False
        self.carrier.flush()
        due_ns = self.shard.core.due_in_ns()
        if due_ns >= 0:
            self._at(due_ns / 1e9)

    # -- other shards

    @handles(LightBatch)
    def on_batch(self, batch: LightBatch, source: Ref) -> None:
        """Take messages and signals from another shard."""
        import pickle  # nosec B403 - from a process that proved this boot's key

        self._learn(batch.source, source)
        shard, address = self.shard, self.shard.core.address
        for item in pickle.loads(batch.data):  # nosec B301 - see above
            if isinstance(item[0], str):
                shard.take_signal(batch.source, item)
            else:
                shard.take_message(Pid(address, item[0], item[1]), item[2])
        self.give_turns()

    @handles(ShardHello)
    def on_hello(self, hello: ShardHello, source: Ref) -> None:
        """Learn which shard another process is."""
        self._learn(hello.address, source)
        if hello.answer:
            self.cast(source, ShardHello(self.shard.core.address, False))
        self.shard.groups_for(hello.address)
        self.carrier.flush()

    def _learn(self, address: ShardAddress, ref: Ref) -> None:
        if address not in self.carrier.refs:
            self.carrier.learn(address, ref)
            self.monitor(ref)

    @handles(Down)
    def on_down(self, down: Down) -> None:
        """Take the end of another shard's process."""
        why = ExitReason(down.reason.kind, f"its shard ended: {down.reason}")
        address = self.carrier.lost(down.ref, why)
        if address is not None:
            self.shard.shard_lost(address, why)
            self.give_turns()

    def _refuse_call(self, number: int, error: BaseException) -> None:
        self.shard.call_refused(number, error)

    # -- what the carrier asks

    def post_batch(self, to: Ref, batch: LightBatch) -> bool:
        """Send a batch."""
        return self.cast(to, batch)

    def when_room(self, to: Ref, callback: Callable[[], None]) -> None:
        """Call back when there is room, or the process is gone."""
        self.await_capacity(to).on_done(callback)

    def find_shard(self, address: ShardAddress) -> Ref | None:
        """The process of a shard nobody has told us of."""
        if address.host != self.shard.core.address.host:
            return None
        ref = self.whereis(f"light shard {address.shard}")
        if ref is not None:
            self._learn(address, ref)
        return ref

    def find_name(self, name: str) -> Pid | None:
        """The light process of another shard that has the name."""
        ref = self.whereis(f"light {name}")
        if ref is None or ref == self.me:
            return None
        shard, number, generation = (int(part) for part in ref.name.split("."))
        return Pid(ShardAddress(self.shard.core.address.host, shard), number, generation)

    def take_name(self, name: str, pid: Pid) -> None:
        """Take a name of the host for a light process of ours."""
        self.runtime.registry.register(f"light {name}", Ref(self.me.address, f"{pid.shard}.{pid.id}.{pid.generation}"))

    def give_name_back(self, name: str) -> None:
        """Give a name back to the host."""
        self.unregister(f"light {name}")

    # -- from outside

    @handles(ShardStart)
    async def start_light(self, request: ShardStart) -> Pid:
        """Start a light process."""
        waiter = Waiter()
        pid = self.shard.spawn_opt(request.kind, request.arguments, name=request.name)
        self.shard.when_started(pid, request.kind, waiter.set, waiter.fail)
        self.give_turns()
        found: Pid = await waiter
        return found

    @handles(ShardCall)
    async def call_light(self, request: ShardCall) -> Any:
        """Call a light process."""
        waiter = Waiter()

        def answer(call: ProcessCall) -> None:
            value, error = call.outcome
            if error is None:
                waiter.set(value)
            else:
                waiter.fail(error if isinstance(error, ActorGridError) else BadRequest(f"it answered with {error!r}"))

        self.shard.call_soon(request.to, request.request, request.timeout_s, answer)
        self.give_turns()
        return await waiter

    @handles(ShardSend)
    def send_light(self, request: ShardSend) -> bool:
        """Send a light process a message, or an exit signal."""
        if request.as_exit:
            self.shard.exit(request.to, request.message)
            sent = True
        else:
            sent = self.shard.send(request.to, request.message)
        self.give_turns()
        return sent

    @handles(ShardTop)
    def busiest(self, request: ShardTop) -> list[ProcessInfo]:
        """The processes with most of one thing."""
        return top(self.shard, request.by, request.count)

    @handles(ShardLookup)
    def look_up(self, request: ShardLookup) -> Pid | list[Pid] | None:
        """Who has the name, or is in the group."""
        return self.shard.members(request.name) if request.members else self.shard.whereis(request.name)

    def metrics(self) -> dict[str, float]:
        """The figures of the shard."""
        return {**shard_figures(self.shard), "process_messages_to_other_shards_total": self.carrier.sent}
