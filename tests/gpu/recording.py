"""What a real NVML answered, written down as a fixture, and played again: for tests where there is no GPU.

``python -m tests.gpu.recording FILE`` writes one on a machine with a GPU; change names and serial numbers before you
hand it to others.

``RecordingNvml`` stands before pynvml and keeps each call with its answer; ``ReplayedNvml`` gives those answers to the
same calls. Handles are tokens (``h0``), in the order in which they came. Structures are kept as their fields.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from actorgrid.actors.gpu.vendors import nvidia

NEVER = ("Set", "Reset", "Clear", "Create", "Destroy", "Freeze", "Remove", "Modify", "Wait", "Register", "Validate")
"""Words of the functions that ``ask_everything`` leaves alone: they change something, or wait."""


class RecordingNvml:
    """pynvml, with what each function of NVML's answered in ``calls``."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._tokens: dict[int, str] = {}
        self._kept: list[Any] = []
        self.calls: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or not inspect.isfunction(found):
            return found

        def call(*arguments: Any) -> Any:
            key = call_key(name, [self._plain(argument) for argument in arguments])
            try:
                answer = found(*arguments)
            except self._nvml.NVMLError as error:
                self.calls[key] = {"error": error.value}
                raise
            self.calls[key] = {"answer": self._plain(answer)}
            return answer

        return call

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, ctypes.Array):
            if value._type_ is ctypes.c_char:
                return value.value.decode(errors="replace")
            return [self._plain(each) for each in value]
        if isinstance(value, list | tuple):
            return [self._plain(each) for each in value]
        if isinstance(value, ctypes._Pointer):
            return self._token(ctypes.cast(value, ctypes.c_void_p).value or 0, value)
        if isinstance(value, ctypes.Structure | ctypes.Union):
            names = [field[0] for field in value._fields_]
            if names == ["handle"]:
                return self._token(ctypes.cast(value.handle, ctypes.c_void_p).value or 0, value)
            return {name: self._plain(getattr(value, name)) for name in names}
        if hasattr(value, "value"):
            return self._plain(value.value)
        return repr(value)

    def _token(self, address: int, value: Any) -> str:
        self._kept.append(value)
        return self._tokens.setdefault(address, f"h{len(self._tokens)}")

    def ask_everything(self, handle: Any) -> None:
        """Call each function that reads and wants a device alone, or nothing: for the record, whoever needs it."""
        for name, function in sorted(inspect.getmembers(self._nvml, inspect.isfunction)):
            if not name.startswith(("nvmlDeviceGet", "nvmlSystemGet")) or any(word in name for word in NEVER):
                continue
            wanted = [
                each
                for each in inspect.signature(function).parameters.values()
                if each.default is inspect.Parameter.empty and each.kind is not inspect.Parameter.VAR_POSITIONAL
            ]
            if len(wanted) != name.startswith("nvmlDeviceGet"):
                continue
            # Besides NVML's refusals, which are kept, the binding has trouble of its own with some.
            with contextlib.suppress(self._nvml.NVMLError, TypeError, AttributeError, ValueError, OSError):
                getattr(self, name)(*([handle] if wanted else []))


class ReplayedNvml:
    """The functions of a recording; names that are no function of NVML's are pynvml's own."""

    def __init__(self, nvml: Any, calls: dict[str, Any]) -> None:
        self._nvml = nvml
        self._calls = calls
        self.missing: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or not inspect.isfunction(found):
            return found

        def call(*arguments: Any) -> Any:
            key = call_key(name, list(arguments))
            told = self._calls.get(key)
            if told is None:
                self.missing.add(key)
                raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
            if "error" in told:
                raise self._nvml.NVMLError(told["error"])
            return as_fields(told["answer"])

        return call


def call_key(name: str, arguments: list[Any]) -> str:
    """A call as one text."""
    return f"{name}({', '.join(map(json.dumps, arguments))})"


def as_fields(value: Any) -> Any:
    """An answer with its structures as objects that have fields."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: as_fields(each) for name, each in value.items()})
    if isinstance(value, list):
        return [as_fields(each) for each in value]
    return value


def load(path: Path) -> dict[str, Any]:
    """A recording: what was called, and what our own code made of it."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def stand_in(replayed: Any) -> nvidia.Nvidia:
    """Our NVIDIA vendor, with *replayed* in pynvml's place once it is asked to probe."""
    vendor = nvidia.Nvidia()
    kept = nvidia.load
    nvidia.load = lambda *_: replayed
    try:
        vendor.first_report = vendor.probe()  # type: ignore[attr-defined]
    finally:
        nvidia.load = kept
    return vendor


def record() -> dict[str, Any]:
    """What NVML answers here, to us and to whoever asks for all; and what we make of it."""
    recorder = RecordingNvml(nvidia.load(nvidia._binding, "pynvml", "nvidia"))
    vendor = stand_in(recorder)
    readings = vendor.read()
    ours = dict(recorder.calls)
    recorder.ask_everything(recorder.nvmlDeviceGetHandleByIndex(0))
    return {
        "report": asdict(vendor.first_report),  # type: ignore[attr-defined]
        "readings": {uuid: asdict(read) for uuid, read in readings.items()},
        "ours": sorted(ours),
        "calls": {**recorder.calls, **ours},
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=1, sort_keys=True, default=str) + "\n", encoding="utf-8")
