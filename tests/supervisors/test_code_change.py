"""New code for a living server or state machine, from the file of its module: with its state, or as it was."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.errors import ActorGridError, BadRequest, NotSupported, WrongState
from actorgrid.supervisors.code_change import ChangeCode, CodeChanged
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.inspection import GetState, Suspend
from actorgrid.supervisors.server import Server

SERVER = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from actorgrid.errors import NotFound
from actorgrid.supervisors.server import Server, handles

@dataclass(frozen=True)
class Sell:
    price: int{record}

@dataclass(frozen=True)
class Receipt:
    total: int

def tax(price):
    return {tax}

class Till(Server):
    name: ClassVar[str] = "till"
    version: ClassVar[str] = "{n}"
    total: int
    {field}

    def start(self):
        self.total, self.ticks = 0, []
        self.every(1.0, self.tick)

    def code_change(self, old_version, state):
        {change}

    def tick(self):
        self.ticks.append(self.version)

    @handles(Sell)
    def sell(self, sell):
        if sell.price < 0:
            raise NotFound("no such price")
        self.total += sell.price + tax(sell.price)
        return Receipt(self.total)
"""
MACHINE = """
from typing import ClassVar
from dataclasses import dataclass
from actorgrid.supervisors.state_machine import StateMachine, keep_state, next_state, on, postpone

@dataclass(frozen=True)
class Push:
    pass

@dataclass(frozen=True)
class Nap:
    pass

class Lamp(StateMachine):
    name: ClassVar[str] = "lamp"
    version: ClassVar[str] = "{n}"
    states = {states}

    def init(self):
        self.pushes = 0

    {change}

    @on({first!r}, Push)
    def push(self, push):
        self.pushes += 1
        return next_state({second!r}, reply=({n}, self.pushes))

    @on({second!r}, Push)
    def wait(self, push):
        {second_does}

    @on({first!r}, Nap)
    async def nap(self, nap):
        await self.sleep(10)
        return keep_state(reply="slept")
"""


def server(n: int, **more: str) -> str:
    return SERVER.format(**{"n": n, "record": "", "tax": "0", "field": "", "change": "pass", **more})


def machine(n: int, first: str, second: str, **more: str) -> str:
    given = {"change": "", "second_does": "return keep_state(postpone())", **more}
    return MACHINE.format(n=n, states=(first, second), first=first, second=second, **given)


class Module:
    """A module of a file that is written anew."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file, self.name = folder / f"{name}.py", name

    def write(self, source: str) -> None:
        self.file.write_text(source)

    def load(self, source: str) -> Any:
        self.write(source)
        importlib.invalidate_caches()
        return importlib.import_module(self.name)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Module]:
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Module(tmp_path, f"shop_{abs(hash(request.node.name))}")
    yield made
    sys.modules.pop(made.name, None)


Shop = tuple[InlineNode, Any, Any]


@pytest.fixture
def till(module: Module) -> Shop:
    loaded = module.load(server(1))
    node = InlineNode()
    return node, loaded, node.add(loaded.Till, None)


def test_it_keeps_its_state_and_its_mail_and_knows_the_messages_of_before(module: Module, till: Shop) -> None:
    node, loaded, made = till
    assert node.request("till", loaded.Sell(10)) == loaded.Receipt(10)
    node.advance(1.0)
    module.write(server(2, tax="price // 10", field="more: int", change="self.more = state['total']"))
    assert node.request("till", ChangeCode()) == CodeChanged(module.name, "1", "2")
    assert node.request("till", loaded.Sell(10)) == loaded.Receipt(21), "records that did not change are the same"
    with pytest.raises(ActorGridError, match="no such price"):
        node.request("till", loaded.Sell(-1))
    assert made.more == 10
    node.advance(1.0)
    assert made.ticks == ["1", "2"], "what is called again and again is of the new class"
    assert sys.modules[module.name] is not loaded
    module.write(server(3))
    assert node.request("till", ChangeCode()).new_version == "3"
    assert node.request("till", loaded.Sell(10)) == loaded.Receipt(31)


def test_a_suspended_server_changes_and_takes_its_mail_by_the_new_code(module: Module, till: Shop) -> None:
    node, loaded, made = till
    node.request("till", Suspend(30.0))
    made.cast("till", loaded.Sell(10))
    node.settle()
    module.write(server(2, tax="price"))
    node.request("till", ChangeCode())
    assert made.total == 0
    made._inspector._resume()
    assert made.total == 20


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("self.total = self.more = -1; raise ValueError('not so')", "not so"),
        ("self.ticks = 7; del self.total", "declares total"),
        ("pass", "declares more"),
        ("self.total = -1\n        while True: pass", "longer than"),
        ("self.total = -1\n        import time; time.sleep(3600)", "longer than"),
    ],
    ids=["raises", "loses", "declares", "spins", "sleeps"],
)
def test_a_change_that_fails_or_hangs_leaves_it_as_it_was(module: Module, till: Shop, change: str, said: str) -> None:
    node, loaded, made = till
    node.request("till", loaded.Sell(10))
    before = dict(vars(made))
    module.write(server(2, tax="price", field="more: int", change=change))
    with pytest.raises(WrongState, match=said):
        node.request("till", ChangeCode(limit_s=0.2))
    assert vars(made).keys() == before.keys() and made.ticks == []
    assert node.request("till", loaded.Sell(10)) == loaded.Receipt(20)
    assert type(made) is loaded.Till and sys.modules[module.name] is loaded


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (server(2, record="\n    currency: str = 'EUR'"), WrongState),
        ("def", BadRequest),
        ("raise ValueError('no')", BadRequest),
        ("x = 1", BadRequest),
        ("class Till: pass", BadRequest),
    ],
)
def test_what_is_no_new_version_is_refused(
    module: Module, till: Shop, source: str, error: type[ActorGridError]
) -> None:
    node, loaded, _made = till
    module.write(source)
    with pytest.raises(error):
        node.request("till", ChangeCode())
    assert node.request("till", loaded.Sell(10)) == loaded.Receipt(10)


def test_without_a_file_or_with_a_wrong_limit_it_is_refused() -> None:
    kind = type("Homeless", (Server,), {"name": "homeless", "__module__": "nowhere_at_all"})
    node = InlineNode()
    node.add(kind, None)
    with pytest.raises(NotSupported):
        node.request("homeless", ChangeCode())
    for limit_s in (0, 61):
        with pytest.raises(BadRequest):
            ChangeCode(limit_s)


@pytest.fixture
def lamp(module: Module) -> Callable[[str], Shop]:
    def make(source: str) -> Shop:
        loaded = module.load(source)
        node = InlineNode()
        return node, loaded, node.add(loaded.Lamp, None)

    return make


def test_a_machine_goes_on_in_its_state_or_the_one_that_its_code_change_says(
    module: Module, lamp: Callable[[str], Shop]
) -> None:
    node, loaded, made = lamp(machine(1, "off", "on"))
    assert node.request("lamp", loaded.Push()) == (1, 1)
    made.cast("lamp", loaded.Push())
    node.settle()
    assert (made.state, made.status()["postponed"]) == ("on", 1)
    module.write(machine(2, "dark", "bright"))
    with pytest.raises(WrongState, match="no state 'on'"):
        node.request("lamp", ChangeCode())
    assert (made.version, made.state) == ("1", "on")
    say = "def code_change(self, old_version, state):\n        return 'bright'"
    does = "self.pushes += 1; return next_state('dark', reply='off')"
    module.write(machine(2, "dark", "bright", change=say, second_does=does))
    assert node.request("lamp", ChangeCode()).new_version == "2"
    assert node.request("lamp", GetState())["state"] == "bright"
    assert node.request("lamp", loaded.Push()) == "off", "handled by the new definition"
    node.settle()
    assert (made.state, made.pushes, made.status()["postponed"]) == ("bright", 3, 0), "and what was postponed, too"


def test_a_machine_within_a_handler_is_not_changed(module: Module, lamp: Callable[[str], Shop]) -> None:
    node, loaded, made = lamp(machine(1, "off", "on"))
    made.cast("lamp", loaded.Nap())
    node.settle()
    module.write(machine(2, "off", "on"))
    with pytest.raises(WrongState, match="within a handler"):
        node.request("lamp", ChangeCode())
    node.advance(11.0)
    assert node.request("lamp", ChangeCode()).new_version == "2"
    assert node.request("lamp", loaded.Push()) == (2, 1)
