"""By which words a device is asked for: of its model, its memory, its vendor, and what its compilers call it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from actorgrid.actors.ledger.record_types import DeviceRecord

from .device import Device
from .vendors.amd_identity import architecture_of

_WORD = re.compile(r"[a-z0-9.]+")
_AT_LEAST = re.compile(r"\bcc(\d{1,3})(?:\.(\d{1,3}))?\+")
_CUDA = re.compile(r"(\d{1,3})\.(\d{1,3})")
_GENERATIONS = {6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 11: "blackwell", 12: "blackwell"}
_GENERATIONS_WITHIN = {(7, 5): "turing", (8, 9): "ada"}
"""NVIDIA's names of compute capabilities: by the major number, but for those that a minor one tells apart."""


def words_of_model(model: str, memory_mib: int = 0) -> frozenset[str]:
    """The words a model answers to: ``NVIDIA H100 80GB HBM3`` answers to h100, 80gb, hbm3, nvidia."""
    words = set(_WORD.findall(model.lower()))
    if memory_mib:
        words.add(f"{round(memory_mib / 1024)}gb")
    return frozenset(words)


def words_of_kind(vendor: str, compute_capability: str | None) -> frozenset[str]:
    """The words of a vendor and an architecture: nvidia, hopper, cc9.0; amd, cdna3, gfx942; intel, xe, hpc."""
    words = {vendor.lower()} if vendor else set()
    said = (compute_capability or "").lower()
    if (cuda := _cuda(said)) is not None:
        words.add(f"cc{said}")
        words.add(_GENERATIONS_WITHIN.get(cuda) or _GENERATIONS.get(cuda[0], f"cc{said}"))
    else:
        words.update(_WORD.findall(said))
        words.add((architecture_of(said) or said).lower().replace(" ", ""))
    return frozenset(words - {""})


def answers_to(
    asked: str, model: str, memory_mib: int = 0, vendor: str = "", compute_capability: str | None = None
) -> bool:
    """Whether a device is what someone means by *asked*: all its words are the device's.

    ``h100``, ``H100-80GB``, the full name; ``nvidia``, ``amd mi300x``; ``hopper``, ``cc9.0``, ``gfx942``; ``cc8.0+``
    is a compute capability of at least that.
    """
    text = asked.lower()
    least = [(int(major), int(minor or 0)) for major, minor in _AT_LEAST.findall(text)]
    wanted = set(_WORD.findall(_AT_LEAST.sub(" ", text)))
    if not (wanted or least) or not wanted <= words_of_model(model, memory_mib) | words_of_kind(
        vendor, compute_capability
    ):
        return False
    has = _cuda(compute_capability or "")
    return not least or (has is not None and has >= max(least))


def is_one_of(device: Device, models: Iterable[str]) -> bool:
    """Whether *device* answers to one of *models*."""
    return any(
        answers_to(one, device.model, device.memory_mib, device.vendor, device.compute_capability) for one in models
    )


def record_is_one_of(device: DeviceRecord, models: Iterable[str], model: str | None = None) -> bool:
    """Whether a device of the ledger answers to one of *models*; as if it were called *model*, where that is given."""
    called, memory_mib = (device.get("model", ""), device["memory_mib"]) if model is None else (model, 0)
    kind = kind_of(device)
    return any(answers_to(one, called, memory_mib, *kind) for one in models)


def kind_of(device: DeviceRecord) -> tuple[str, str | None]:
    """The vendor and the compute capability of a device of the ledger; nobody checked them in records of before."""
    vendor, capability = device.get("vendor"), device.get("compute_capability")
    return vendor if isinstance(vendor, str) else "", capability if isinstance(capability, str) else None


def _cuda(text: str) -> tuple[int, int] | None:
    found = _CUDA.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))
