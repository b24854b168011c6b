"""Two virtual machines with soft-RoCE on a bridge: what the verbs of the kernel and of pyverbs do, without such a card.

The guests' cards are TAPs of one bridge in a network namespace (``tests/virtual_machines.py`` has the machines).
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import virtual_machines
from tests.virtual_machines import BOOT_S, REPOSITORY, Guest, Parts, run


def why_not() -> str | None:
    """Why no such machines can be had here; ``None`` when they can be tried."""
    return "no /dev/net/tun" if not os.path.exists("/dev/net/tun") else virtual_machines.why_not("ip", "rdma")


def parts() -> Parts | str:
    """What they are made of; a text says why it could not be had."""
    found = virtual_machines.parts()
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-"
    if not isinstance(found, str) and not list(_packages(found).glob(f"pyverbs/cq.{tag}*")):
        return f"the distribution's pyverbs is not for Python {platform.python_version()}"
    return found


def _packages(made_of: Parts) -> Path:
    return made_of.folder / "usr/lib/python3/dist-packages"


def _guest(folder: Path, made_of: Parts, network: str, number: int) -> Guest:
    address = f"10.77.0.{number}"
    provider = str(made_of.folder / "usr/lib/x86_64-linux-gnu/libibverbs/librxe")
    program = (
        f"ip link set lo up; ip addr add {address}/24 dev eth0; ip link set eth0 up\n"
        f"rdma link add rxe0 type rxe netdev eth0; ulimit -l unlimited\n"
        f"exec {shlex.quote(sys.executable)} -X faulthandler -m tests.transports.rdma.guest {address}\n"
    )
    card = ["-netdev", f"tap,id=n,ifname=tap{number},script=no,downscript=no"]
    card += ["-device", f"virtio-net-pci,netdev=n,mac=52:54:00:77:00:0{number},romfile="]
    environment = {
        **made_of.guest_environment(),
        "PYTHONPATH": f"{REPOSITORY}:{_packages(made_of)}",
        "IBV_DRIVERS": provider,
        "RDMAV_DRIVERS": provider,
    }
    return Guest(folder, f"guest{number}", made_of, program, network=network, devices=card, environment=environment)


class Machines:
    """Both guests and their bridge. ``cut`` pulls a guest's cable out of the bridge, ``mend`` puts it back."""

    def __init__(self, folder: Path, made_of: Parts) -> None:
        self.network = f"rdma{os.getpid()}"
        self._made_of, self._folder = made_of, folder
        self.guests: list[Guest] = []
        run("ip", "netns", "add", self.network)
        try:
            self._ip("link", "add", "br0", "type", "bridge", "stp_state", "0")
            self._ip("link", "set", "br0", "up")
            for number in (1, 2):
                self._ip("tuntap", "add", "dev", f"tap{number}", "mode", "tap")
                self._ip("link", "set", f"tap{number}", "master", "br0", "up")
                self.guests.append(_guest(folder, made_of, self.network, number))
            for guest in self.guests:
                guest.hear(BOOT_S)
        except BaseException:
            self.close()
            raise

    def _ip(self, *words: str) -> None:
        run("ip", "-n", self.network, *words)

    def cut(self, number: int) -> None:
        self._ip("link", "set", f"tap{number}", "down")

    def mend(self, number: int) -> None:
        self._ip("link", "set", f"tap{number}", "up")

    def close(self) -> None:
        for guest in self.guests:
            guest.kill()
        subprocess.run(["ip", "netns", "del", self.network], check=False)


@contextmanager
def machines(folder: Path, made_of: Parts) -> Iterator[Machines]:
    """Both guests, up; ended at the end."""
    both = Machines(folder, made_of)
    try:
        yield both
    finally:
        both.close()
