"""What the core of light processes asks of the shard around it."""

from __future__ import annotations

from typing import Any, Protocol

from .light_process import LightProcess
from .process_records import Pid, ProcessCall


class ProcessHooks(Protocol):
    """What the core asks of the shard around it."""

    function_process: type[LightProcess]
    """The class for functions that are spawned: its ``runs_a_function`` is true."""

    def process_started(self, process: LightProcess) -> None:
        """Take note that the start of a process that ``tells_start`` has ended well."""

    def process_ended(self, process: LightProcess, error: BaseException | None) -> None:
        """Take note that the code of a process is at its end, or raised *error*; ``remove`` it."""

    def close_failed(self, process: LightProcess, error: BaseException) -> None:
        """Take note that what a coroutine did when it was closed raised *error*."""

    def mailbox_overflowed(self, process: LightProcess) -> None:
        """End a process whose mailbox is full, as its class wishes."""

    def whereis(self, name: Any) -> Pid | None:
        """The process of that name. Raises BadRequest for what can be no name."""

    def send_elsewhere(self, to: Any, message: Any) -> bool:
        """Send to what is no process of this shard; whether it went."""

    def call_elsewhere(self, call: ProcessCall) -> None:
        """Bring a call to what is no process of this shard, or ``fail`` it."""

    def foreign_await(self, process: LightProcess, awaited: Any) -> None:
        """Deal with a process that awaits something that is not of here; ``wake`` it."""

    def reply_message(self, call: ProcessCall) -> Any:
        """The message that brings the outcome of a call with a label."""

    def down_error(self, process: LightProcess, reason: Any) -> BaseException:
        """What is raised at those who wait for an answer of a process that ended for *reason*."""
