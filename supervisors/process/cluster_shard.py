"""A shard of a set over the hosts of a cluster: its names are the set's, its groups too, and links lead to the others.

What carries bytes is not here; ``shard_loop.py`` has it, and tests have wires that they cut.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from actorgrid.errors import ActorGridError, CallTimeout, NoSuchActor
from actorgrid.hotpath.light import LightProcess, Pid, ShardAddress

from ..exits import ExitReason
from .global_names import SIGNALS, GlobalNames
from .names import checked_name, name_taken
from .shard_groups import GroupedShard
from .shard_links import ShardIdentity, ShardLinks, slot_of

PATIENCE_S = 8.0
"""How long a link may be silent before it counts as broken."""


class ClusterShard(GroupedShard):
    """One shard; see the module. *secret*: the set's, which all its shards prove to each other."""

    def __init__(
        self,
        me: ShardIdentity,
        secret: bytes,
        *,
        clock: Callable[[], int],
        patience_s: float = PATIENCE_S,
        random: Callable[[int], bytes] = os.urandom,
        **more: Any,
    ) -> None:
        address = me.address
        super().__init__(address.host, address.shard, clock=clock, **more)
        self.me = me
        self.links = ShardLinks(me, secret, self, random, patience_s)
        self.carrier = self.links
        self.global_names = GlobalNames(
            *(me.slot, me.count, me.token, self._tell_slot, self._claim_settled, self._name_lost)
        )
        self.links.find_name = self.global_names.whereis
        self.names.on_freed = self._name_freed
        self.kept_states: dict[str, Any] = {}
        """What the incarnation before saved, by name; each is given to who takes the name."""
        self._claim_ids = itertools.count(1)
        self._claims: dict[int, tuple[Callable[[BaseException | None], None], str, LightProcess, Any]] = {}

    def now_s(self) -> float:
        """The shard's clock, in seconds."""
        return self.clock() / 1e9

    def after_turns(self) -> None:
        """Send what came of the turns."""
        self.global_names.flush()
        self.links.flush(self.now_s())

    def group_shards(self) -> Iterable[ShardAddress]:
        """Those that are linked."""
        return [found for n in range(self.me.count) if (found := self.links.address_of(n)) is not None]

    # -- links

    def link_up(self, slot: int, address: ShardAddress) -> None:
        """Tell a shard that is linked now of our groups and names."""
        self.groups_for(address)
        self.global_names.link_up(slot)

    def shard_lost(self, address: ShardAddress, reason: ExitReason) -> None:
        """Tell who is tied to it."""
        self.global_names.link_down(slot_of(address))
        super().shard_lost(address, reason)

    def take_items(self, slot: int, address: ShardAddress, items: list[tuple[Any, ...]]) -> None:
        """Take messages and signals of another shard."""
        mine = self.core.address
        for item in items:
            if not isinstance(item[0], str):
                self.take_message(Pid(mine, item[0], item[1]), item[2])
            elif item[0] in SIGNALS:
                self.global_names.take(slot, item)
            else:
                self.take_signal(address, item)

    def _tell_slot(self, slot: int, signal: tuple[Any, ...]) -> None:
        address = self.links.address_of(slot)
        if address is not None:
            self.links.signal(address, signal)

    # -- names of the set

    def register_global(self, process: LightProcess, name: str, timeout_s: float) -> Awaitable[None]:
        """Claim a name of the set for a process, which awaits it."""
        waiting = self.core.waiting(process)

        def settle(error: BaseException | None) -> None:
            if error is None:
                waiting.settle(None)
            else:
                waiting.fail(error)

        self.claim(process, name, timeout_s, settle)
        return waiting

    def claim_global(self, process: LightProcess, name: str) -> None:
        """Claim a name for a process that does not wait for it, and ends if it is another's."""

        def settle(error: BaseException | None) -> None:
            if error is not None:
                why = f"{type(error).__name__}: {error}"
                self.end(process, ExitReason("error", why, error=error if isinstance(error, ActorGridError) else None))

        self.claim(process, name, None, settle)

    def name_token(self, process: LightProcess, name: str) -> str:
        """The token under which a process of ours has a name of the set. Raises NoSuchActor when it has it not."""
        token = self.global_names.token_of(checked_name(name))
        if token is None or self.global_names.holder_here(name) != process.pid:
            raise NoSuchActor(f"{process.pid} has not the name {name!r}", hint="await self.register_global(name)")
        return token

    def claim(
        self, process: LightProcess, name: str, timeout_s: float | None, settle: Callable[[BaseException | None], None]
    ) -> None:
        """Claim a name for a process; *settle* hears why not, or ``None``. Raises BadRequest, NameTaken."""
        # What other shards hold is the home's to say: what we know of it may be a moment old.
        holder = self.names.names.get(checked_name(name))
        if holder is not None and holder != process.pid:
            raise name_taken(name, holder)
        number = next(self._claim_ids)

        def late() -> None:
            if self._claims.pop(number, None) is not None:
                self.global_names.give_up(number)
                home = self.global_names.home_of(name)
                settle(
                    CallTimeout(
                        f"nobody has granted the name {name!r} within {timeout_s:g} s",
                        asked=f"shard {home} of {self.me.group}, which grants it",
                        found=f"not linked: {self.links.missing()}",
                        hint="it is being begun again, or waits for one that is",
                    )
                )

        timer = None if timeout_s is None else self.core.call_after(timeout_s, late)
        self._claims[number] = (settle, name, process, timer)
        self.global_names.claim(number, name, process.pid)

    def _claim_settled(self, number: int, error: ActorGridError | None) -> None:
        found = self._claims.pop(number, None)
        if found is None:
            return
        settle, name, process, timer = found
        if timer is not None:
            timer.cancel()
        settle(error if error is not None else self._take_name(name, process))

    def _take_name(self, name: str, process: Any) -> Exception | None:
        if self.core.find(process.pid) is None:
            self.global_names.free(name, process.pid)
            return None  # it ended meanwhile: nobody waits
        try:
            self.names.register(name, process)
        except ActorGridError as refused:
            self.global_names.free(name, process.pid)
            return refused
        if name in self.kept_states and hasattr(process, "load_state"):
            try:
                process.load_state(self.kept_states.pop(name))
            except Exception as error:  # noqa: BLE001 - the process's own: it is raised where it awaits the name
                return error
        return None

    def _name_freed(self, name: str) -> None:
        pid = self.global_names.holder_here(name)
        if pid is not None:
            self.global_names.free(name, pid)

    def _name_lost(self, name: str, pid: Pid) -> None:
        process = self.core.find(pid)
        if process is not None:
            self.end(process, ExitReason("error", f"another process has its name {name!r}"))

    def saved_states(self) -> dict[str, Any]:
        """What processes with names of the set want kept: of each with ``save_state``, what that gives."""
        found: dict[str, Any] = {}
        for name, pid in self.global_names.held().items():
            process: Any = self.core.find(pid)
            if process is not None and hasattr(process, "save_state"):
                found[name] = process.save_state()
        return {**self.kept_states, **found}
