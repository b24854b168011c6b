"""Collects what a library answers about one device: a value, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DeviceLost(Exception):
    """The library says that the device itself is gone or unusable; the text is its word."""


class Answers:
    """Values by name in ``values``, reasons by name in ``unsupported``.

    *explain* gives the reason for what a call raised, or raises DeviceLost, or raises it again when it is none of the
    library's errors.
    """

    def __init__(self, explain: Callable[[Exception], str]) -> None:
        self.values: dict[str, Any] = {}
        self.unsupported: dict[str, str] = {}
        self._explain = explain

    def ask(self, name: str, call: Callable[[], Any]) -> Any:
        """Keep what *call* gives as *name*; ``None`` from it is a reason too."""
        try:
            value = call()
        except Exception as error:  # noqa: BLE001 - explain raises again what is not the library's
            self.unsupported[name] = self._explain(error)
            return None
        if value is None:
            self.unsupported[name] = "the device does not tell it"
        else:
            self.values[name] = value
        return value

    def ask_together(self, call: Callable[[], Any], **take: Callable[[Any], Any]) -> None:
        """Keep several values of one call, each by how it is taken from its answer; or its one reason for all."""
        try:
            told = call()
        except Exception as error:  # noqa: BLE001 - explain raises again what is not the library's
            self.lack(self._explain(error), *take)
            return
        for name, part in take.items():
            self.ask(name, lambda part=part: part(told))  # type: ignore[misc]

    def lack(self, reason: str, *names: str) -> None:
        """Say of *names* that this library has no such reading."""
        for name in names:
            self.unsupported.setdefault(name, reason)
