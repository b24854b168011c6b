"""How close the devices of a host are to each other: as their host tells the ledger, and who has a close set of them.

A text for each device, with a digit for each index of the host: see ``hotpath.closeness``. Parts of a device (MIG
instances) are close to nothing: no library says how they would talk to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from actorgrid.actors.ledger.field_checks import is_near
from actorgrid.actors.ledger.record_types import DeviceRecord, HostRecord
from actorgrid.actors.ledger.records import parent_of
from actorgrid.device_words import GPU_TOPOLOGIES
from actorgrid.hotpath.closeness import DEVICES_MAX, closeness_number, near_masks, near_set

from .device import Device
from .probe_report import DISTANCES

_NUMBERS = {word.upper(): 1 + place for place, word in enumerate(GPU_TOPOLOGIES)}
_FABRIC, _ONE_NODE = 1, len(GPU_TOPOLOGIES)


def near_texts(devices: Iterable[Device], links_of: Callable[[Device], Mapping[str, str]]) -> dict[str, str]:
    """The text of each of a host's *devices*, by UUID, of those that are close to any.

    *links_of* gives how one is joined to others, in nvidia-smi's words; where it says nothing of two, they are as close
    as their NUMA nodes say.
    """
    wholes = [device for device in devices if not device.parent and device.index < DEVICES_MAX]
    found = {}
    for device in wholes:
        links = links_of(device)
        digits = ["0"] * (1 + max(other.index for other in wholes))
        for other in wholes:
            if other is not device:
                digits[other.index] = str(_number(device, other, links.get(other.uuid)))
        text = "".join(digits).rstrip("0")
        if text:
            found[device.uuid] = text
    return found


def near_in(host: HostRecord | None) -> dict[str, str]:
    """What the ledger has of that, of each device."""
    return {} if host is None else {device["uuid"]: text for device in host["devices"] if (text := told_near(device))}


def told_near(device: DeviceRecord) -> str:
    """A device's text; nobody checked it in records of before."""
    text = device.get("near", "")
    return text if is_near(text) and not parent_of(device) else ""


def near_among(devices: Sequence[DeviceRecord]) -> tuple[str, ...] | None:
    """The texts of *devices*, some of a host's, by their places there, not by indexes; ``None``: none are close."""
    texts = [told_near(device) for device in devices]
    if not any(texts):
        return None
    indexes = [device["index"] for device in devices]
    return tuple("".join(text[index] if index < len(text) else "0" for index in indexes) for text in texts)


def most_close(devices: Sequence[DeviceRecord], word: str) -> int:
    """How many of *devices*, some of a host's, are all as close to each other as *word* says; of none, 1 at most."""
    masks = near_masks("", near_among(devices), len(devices))
    number, every = closeness_number(word), (1 << len(devices)) - 1
    for count in range(min(len(devices), DEVICES_MAX), 1, -1):
        if near_set(masks, number, every, count) is not None:
            return count
    return min(1, len(devices))


def _number(one: Device, other: Device, word: str | None) -> int:
    if word is None:
        return _ONE_NODE if one.numa_node is not None and one.numa_node == other.numa_node else 0
    # All words that are not of the bus are of a fabric: NV4, XGMI, XL2.
    return _NUMBERS.get(word, 0 if word in DISTANCES else _FABRIC)
