"""What must be so on this machine before a start writes anything: its address, its GPUs, its clock, its user.

A start that is refused later would leave a directory behind with a place in a cluster nobody can reach.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from typing import Literal

from actorgrid.amounts import duration
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import InvalidSetting, StartFailed

SHOWN_ADDRESSES = 8
VENDORS = {"nvidia": ("NVIDIA", "nvidia-smi"), "amd": ("AMD", "amd-smi"), "intel": ("Intel", "xpu-smi")}
"""Vendors that gpus.source may name: as people write them, and the vendor's own tool."""
CLOCK_BACK_S = 300.0
"""Less is what clocks that are kept by NTP may differ by after a step."""


def refuse_what_is_not_here(settings: Settings, paths: HostPaths) -> None:
    """Raises InvalidSetting for an address that no interface has, and for GPUs of a vendor that no driver shows.

    GPUs are looked for when somebody said just now that there are some (a flag), and when the directory is new. A host
    that has been one before starts without them: its vote and its disk are needed whatever its driver does, and
    ``status`` says what is missing.
    """
    if settings.cluster.listen:
        refuse_foreign_address(settings.cluster.listen, "actorgrid up --listen")
    new = not paths.host_file.exists()
    if settings.gpus.source in VENDORS and (new or settings.origin("gpus.source").startswith("--")):
        _refuse_without_devices(settings)


def refuse_foreign_address(address: str, how: str) -> None:
    """Raises InvalidSetting, with the addresses that there are, when nothing here can listen at *address*."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                return  # whatever that is, it is not that the address is another machine's
        else:
            return
    here = _addresses(family)
    raise InvalidSetting(
        f"no interface of this machine has the address {address}",
        asked=f"cluster.listen: {address}",
        found="addresses here: " + (", ".join(here[:SHOWN_ADDRESSES]) or "none but loopback"),
        hint=f"{how} {here[0] if here else 'ADDRESS'}; nothing was written",
        key="cluster.listen",
    )


def clock_note(paths: HostPaths, now_s: float) -> str:
    """The warning that the clock is behind what this directory has seen; empty when it is not.

    Leases and links go by clocks that cannot be set, so a host starts all the same; times in lists, deadlines and
    certificates do not.
    """
    newest = 0.0
    for path in (paths.host_file, paths.cluster_file, paths.start_file, paths.log_file):
        with suppress(OSError):
            newest = max(newest, path.stat().st_mtime)
    if newest - now_s < CLOCK_BACK_S:
        return ""
    return (
        f"this machine's clock is {duration(newest - now_s)} behind the last start on this directory: set it"
        " (timedatectl shows it); until then certificates may be refused and times in lists are wrong"
    )


def beginning_note(paths: HostPaths, listens: bool) -> str:
    """The note that a start in an empty directory begins a new host, and how one that lost its directory comes back."""
    if paths.host_file.exists():
        return ""
    if not listens:
        return "a new host, alone; one that lost its directory joins its cluster again with --join MEMBER --token TOKEN"
    return (
        "this begins a NEW cluster. A host that has lost its directory joins its old one again: on a member, actorgrid"
        " leave --host OLD-HOST --force, then actorgrid token create; here, actorgrid up --join MEMBER --token TOKEN"
    )


def _addresses(family: socket.AddressFamily) -> list[str]:
    """This machine's addresses: those that other machines can be told, then those of loopback."""
    import psutil

    found = [
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == family
    ]
    return sorted(found, key=lambda text: (text.startswith("127.") or text == "::1", text))


def _refuse_without_devices(settings: Settings) -> None:
    from ..gpu.probe import look_once

    vendor = settings.gpus.source
    name, tool = VENDORS[vendor]
    report = look_once(vendor, settings.gpus.probe_timeout_s)
    if report.devices:
        return
    said = f": {report.message}" if report.message else ""
    raise InvalidSetting(
        f"gpus.source is {vendor}, and no {name} GPU can be used here",
        asked=f"gpus.source: {vendor} ({settings.origin('gpus.source')})",
        found=f"{report.outcome}{said}",
        hint=f"{tool} says more. Without GPUs: --gpus none; with simulated ones: --gpus 8. Nothing was written",
        key="gpus.source",
    )


def warning_of_root(uid: int, mode: Literal["warn", "accept", "refuse"]) -> str | None:
    """The warning for who starts an agent with this uid. Raises StartFailed where ``security.work_as_root`` refuses."""
    if uid != 0 or mode == "accept":
        return None
    if mode == "refuse":
        raise StartFailed(
            "the agent would run as root, and so would everybody's work",
            asked="security.work_as_root = refuse",
            found="uid 0",
            hint="start it as a user of its own, or with --set security.work_as_root=accept",
        )
    return (
        "running as root: work runs as root, too, and may do anything on this machine. Start the agent as a user of "
        "its own, or say that it is meant: --set security.work_as_root=accept"
    )
