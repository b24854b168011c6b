"""A core of light processes on a clock that is moved by hand, with hooks that keep books; for each implementation."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import actorgrid.hotpath.light
from actorgrid.errors import ActorDown, MailboxFull, NoSuchActor

MS = 1_000_000
REFERENCE = [
    import_module(f"actorgrid.hotpath.reference.{name}")
    for name in ("process_records", "light_process", "process_core")
]
NAMES = {name: value for module in REFERENCE for name, value in vars(module).items()}
KINDS: dict[str, Any] = {"reference": SimpleNamespace(**NAMES)}
if actorgrid.hotpath.light.LIGHT_COMPILED:
    KINDS["compiled"] = import_module("actorgrid.hotpath.process_core")


class Hooks:
    """A shard that keeps books of what it is told."""

    def __init__(self, kernel: Any) -> None:
        self.core: Any = None
        self.ends: list[tuple[Any, Any]] = []
        self.began: list[Any] = []
        self.elsewhere: list[tuple[Any, Any]] = []
        self.foreign: list[tuple[Any, Any]] = []
        self.closing: list[BaseException] = []
        self.names: dict[str, Any] = {}
        self.function_process = type("FunctionProcess", (kernel.LightProcess,), {"runs_a_function": True, "run": None})
        self.function_process.run = lambda: None

    def process_started(self, process: Any) -> None:
        self.began.append(process.pid)

    def process_ended(self, process: Any, error: Any) -> None:
        self.ends.append((process.pid, error))
        self.core.remove(process, error)

    def close_failed(self, process: Any, error: BaseException) -> None:
        self.closing.append(error)

    def mailbox_overflowed(self, process: Any) -> None:
        self.process_ended(process, MailboxFull("it overflowed"))

    def whereis(self, name: Any) -> Any:
        return self.names.get(name)

    def send_elsewhere(self, to: Any, message: Any) -> bool:
        self.elsewhere.append((to, message))
        return False

    def call_elsewhere(self, call: Any) -> None:
        call.fail(NoSuchActor("nobody is there"))

    def foreign_await(self, process: Any, awaited: Any) -> None:
        self.foreign.append((process, awaited))

    def reply_message(self, call: Any) -> Any:
        return (call.label, call.outcome)

    def down_error(self, process: Any, reason: Any) -> ActorDown:
        return ActorDown(f"it ended: {reason}")


class Stage:
    """A core on a clock that we move, with the classes that its processes are made of."""

    def __init__(self, kernel: Any, processes_max: int = 1000) -> None:
        self.kernel = kernel
        self.hooks = Hooks(kernel)
        self.now = 0
        self.core = self.hooks.core = kernel.ProcessCore(self.hooks, "here", 1, lambda: self.now, processes_max)
        self.log: list[Any] = []

    def settle(self) -> None:
        while self.core.run(1000):
            pass

    def after(self, ms: float) -> None:
        self.now += int(ms * MS)
        self.settle()

    def kind(self, **methods: Any) -> type:
        return type("Example", (self.kernel.LightProcess,), methods)

    def spawn(self, kind: Any, *args: Any, **more: Any) -> Any:
        process = self.core.spawn(kind, args, **more)
        self.settle()
        return process

    def logger(self, **more: Any) -> Any:
        log = self.log
        return self.kind(handle_info=lambda me, message: log.append(message), **more)

    def ask(self, to: Any, request: Any, timeout_s: float | None = 5.0) -> Any:
        answers: list[Any] = []
        self.core.call(to, request, timeout_s, answers.append)
        self.settle()
        assert answers, "no answer yet"
        value, error = answers[0].outcome
        if error is not None:
            raise error
        return value
