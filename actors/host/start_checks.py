"""What must be so on this machine before a start writes anything: the address is ours, the GPUs asked for are there.

A start that is refused later would leave a directory behind with a place in a cluster nobody can reach.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import InvalidSetting

SHOWN_ADDRESSES = 8


def refuse_what_is_not_here(settings: Settings, paths: HostPaths) -> None:
    """Raises InvalidSetting for an address that no interface has, and for NVIDIA GPUs that no driver shows.

    GPUs are looked for when somebody said just now that there are some (a flag), and when the directory is new. A host
    that has been one before starts without them: its vote and its disk are needed whatever its driver does, and
    ``status`` says what is missing.
    """
    if settings.cluster.listen:
        refuse_foreign_address(settings.cluster.listen, "actorgrid up --listen")
    new = not paths.host_file.exists()
    if settings.gpus.source == "nvidia" and (new or settings.origin("gpus.source").startswith("--")):
        _refuse_no_nvidia(settings)


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


def _addresses(family: socket.AddressFamily) -> list[str]:
    """Those that other machines can be told, then those of loopback."""
    import psutil

    found = [
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == family
    ]
    return sorted(found, key=lambda text: (text.startswith("127.") or text == "::1", text))


def _refuse_no_nvidia(settings: Settings) -> None:
    from ..gpu.probe import look_once

    report = look_once("nvidia", settings.gpus.probe_timeout_s)
    if report.devices:
        return
    said = f": {report.message}" if report.message else ""
    raise InvalidSetting(
        "gpus.source is nvidia, and no NVIDIA GPU can be used here",
        asked=f"gpus.source: nvidia ({settings.origin('gpus.source')})",
        found=f"{report.outcome}{said}",
        hint="nvidia-smi says more. Without GPUs: --gpus none; with simulated ones: --gpus 8. Nothing was written",
        key="gpus.source",
    )
