"""Hosts as network namespaces on one bridge, and what can happen to the wires between them.

Every namespace has a veth into a bridge that stands in a namespace of its own; nftables drops frames there. So hosts
speak real TCP over links that really fail. Needs root, ``ip`` and ``nft``; ``missing`` says what is not there.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from tests.processes import is_alive, until

CLONE_NEWNET = 0x40000000
NAMED = Path("/run/netns")
TABLE = "bridge faults"
ALL = 100


def missing() -> str:
    """What keeps this machine from having such hosts, or an empty text."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package {package})"
    probe = f"agt{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"this machine lets no one make a network namespace: {made.stderr.strip()}"
    try:
        rules = f"table {TABLE} {{ chain forward {{ type filter hook forward priority 0; policy accept; }}\n}}\n"
        command = ["ip", "netns", "exec", probe, "nft", "-f", "-"]
        done = subprocess.run(command, input=rules, capture_output=True, text=True, check=False)
    finally:
        _run("ip", "netns", "delete", probe)
    return f"nft has no tables for bridges here: {done.stderr.strip()}" if done.returncode else ""


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def enter(namespace: str) -> None:
    """Have the calling thread, and threads that it starts, live in *namespace*; the process stays where it is."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(NAMED / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(fd)


class Wires:
    """Namespaces 1 to *hosts*, at ``address``, all linked. Faults add up until ``heal``."""

    def __init__(self, hosts: int) -> None:
        self.hosts = range(1, hosts + 1)
        self._prefix = f"agt{os.getpid()}"
        self._rules: list[str] = []
        _sweep()
        switch = self.switch = f"{self._prefix}-switch"
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge", "stp_state", "0")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for host in self.hosts:
            name = self.namespace(host)
            _run("ip", "netns", "add", name)
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "-n", switch, "link", "add", f"p{host}", *ends)
            _run("ip", "-n", switch, "link", "set", f"p{host}", "master", "br0", "up")
            _run("ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "eth0", "up")

    def namespace(self, host: int) -> str:
        """Its name; unique to this process."""
        return f"{self._prefix}-h{host}"

    def address(self, host: int) -> str:
        """Where the others reach it."""
        return f"10.99.0.{host}"

    def in_switch(self, *words: str) -> None:
        """Run ``ip`` with *words* in the namespace of the bridge."""
        _run("ip", "-n", self.switch, *words)

    def close(self) -> None:
        """End all that lives in the namespaces, and take them down."""
        for host in self.hosts:
            self.kill(host)
        _remove([self.namespace(host) for host in self.hosts] + [self.switch])

    # -- faults of the wires

    def drop(self, sources: Iterable[int], targets: Iterable[int], percent: int = ALL) -> None:
        """Lose so many of the frames that go from *sources* to *targets*: one way only."""
        chance = "" if percent >= ALL else f"numgen random mod {ALL} < {percent} "
        for source, target in product(sources, targets):
            if source != target:
                self._rules.append(f"iifname p{source} oifname p{target} {chance}drop")
        self._apply()

    def part(self, side: Iterable[int]) -> None:
        """Cut the hosts of *side* off from all others, both ways."""
        one = set(side)
        other = set(self.hosts) - one
        self.drop(one, other)
        self.drop(other, one)

    def heal(self) -> None:
        """No frame is dropped any more."""
        self._rules.clear()
        self._apply()

    def _apply(self) -> None:
        # Deleted and made again in one transaction: no frame meets half of the rules.
        rules = "\n  ".join(self._rules)
        chain = f"chain forward {{ type filter hook forward priority 0; policy accept;\n  {rules}\n }}"
        text = f"table {TABLE} {{ }}\ndelete table {TABLE}\ntable {TABLE} {{\n {chain}\n}}\n"
        _run("ip", "netns", "exec", self.switch, "nft", "-f", "-", text=text)

    def plug(self, host: int, there: bool) -> None:
        """Put its cable in, or pull it."""
        _run("ip", "-n", self.switch, "link", "set", f"p{host}", "up" if there else "down")

    # -- faults of hosts

    def pids(self, host: int) -> list[int]:
        """All processes of a host, workers and shims too."""
        return [int(word) for word in _run("ip", "netns", "pids", self.namespace(host)).split()]

    def signal(self, host: int, number: int) -> None:
        """Send a signal to every process of a host, those that were born meanwhile too."""
        sent: set[int] = set()
        while fresh := set(self.pids(host)) - sent:
            for pid in fresh:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            sent |= fresh

    def kill(self, host: int) -> None:
        """End every process of a host at once."""

        def gone() -> bool:
            pids = [pid for pid in self.pids(host) if is_alive(pid)]
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return not pids

        until(gone, f"every process of host {host} is gone")


def _remove(names: Iterable[str]) -> None:
    for name in names:
        _run("ip", "netns", "delete", name)


def _sweep() -> None:
    """Take down what a run that was killed has left: its namespaces carry its pid."""
    listed = [line.split()[0] for line in _run("ip", "netns", "list").splitlines()]
    left = [name for name in listed if (made := re.match(r"agt(\d+)-", name)) and not is_alive(int(made[1]))]
    for name in left:
        for pid in _run("ip", "netns", "pids", name).split():
            os.kill(int(pid), signal.SIGKILL)
    _remove(left)
