"""Nothing is given out twice: by a second reading of the log, and by what the hosts really run.

The reading does not trust the ledger's own sums: it keeps its own, from commands and outcomes alone.
"""

from __future__ import annotations

from typing import Any

from actorgrid.actors.ledger.attempt_ids import attempt_of
from actorgrid.actors.ledger.entry_codec import decode_entry
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.messages import Entry

from .checker import AttemptProcess, Checker, Host

DEVICE_MILLI = 1000


class Grants(Checker):
    """Every grant in the log is of the term and incarnation then valid and fits what is free; tokens only grow."""

    def __init__(self) -> None:
        self._next = 0
        self._incarnations: dict[str, int] = {}
        self._up: dict[str, bool] = {}
        self._lost: set[str] = set()
        self._free: dict[tuple[str, int], int] = {}
        self._held: dict[str, tuple[str, tuple[int, ...], int]] = {}
        self._devices: dict[tuple[str, int], dict[str, Any]] = {}
        self._wholes: dict[str, tuple[str, bool]] = {}
        self._last_token = (0, 0)

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Read each entry once, from whoever applies it first."""
        if entry.index <= self._next or entry.kind != "command" or not entry.data:
            return
        self._next = entry.index
        if outcome.error is not None or outcome.repeated:
            return
        _, _, command = decode_entry(entry.data)
        kind = command["type"]
        if kind == "register_host":
            given = command["host"]
            self._incarnations[given["host_id"]] = given["incarnation"]
            self._devices.update({(given["host_id"], device["index"]): device for device in given["devices"]})
            self._up[given["host_id"]] = given.get("state", "up") == "up"
        elif kind == "lose_host":
            self._lost.add(command["host"])
        elif kind == "confirm_host" and command["lost_at"] is not None:
            self._lost.discard(command["host"])
        elif kind == "grant_attempt":
            self._granted(entry, command, [command], outcome, state)
        elif kind == "grant_gang":
            self._granted(entry, command, command["members"], outcome, state)
        for changed, id, record in outcome.changes:
            if changed == "allocation" and record is None and (held := self._held.pop(id, None)) is not None:
                for index in held[1]:
                    self._wholes.pop(f"{id} {index}", None)
                    self._free[held[0], index] = self._free.get((held[0], index), DEVICE_MILLI) + held[2]

    def _granted(
        self, entry: Entry, command: dict[str, Any], places: list[dict[str, Any]], outcome: Outcome, state: Any
    ) -> None:
        """All *places* of one grant: a single attempt has one, a gang as many as members."""
        asked = f"entry {entry.index}: {command['job_id']}.{command['number']}"
        if command["term"] != entry.term:
            self.fail("a grant of another term", asked=f"{asked}, term {command['term']}", found=f"term {entry.term}")
        assert outcome.result is not None, "a grant without a result"
        token = (outcome.result["token"][0], outcome.result["token"][1])
        if token <= self._last_token:
            self.fail("a token that does not grow", asked=f"{asked}: {token}", found=f"{self._last_token} before")
        self._last_token = token
        given = [(id, record) for changed, id, record in outcome.changes if changed == "allocation" and record]
        resources = state.jobs[command["job_id"]]["resources"]
        if len(given) != len(places) or len(places) != resources.get("gang", 1):
            found = f"{len(given)} allocations for {resources.get('gang', 1)} members"
            self.fail("a gang that was granted in part", asked=f"{asked}, {len(places)} places", found=found)
        for place, (id, record) in zip(places, given, strict=True):
            if place["host"] in self._lost:
                found = f"{place['host']} has not confirmed itself since"
                self.fail("a grant to a host that is lost", asked=asked, found=found)
            if (
                place["host"] != record["host"]
                or place["incarnation"] != self._incarnations.get(place["host"])
                or (not self._up[place["host"]])
            ):
                self.fail(
                    "a grant to a host that is no more",
                    asked=f"{asked}, {place['host']} incarnation {place['incarnation']}",
                    found=f"incarnation {self._incarnations.get(place['host'])}",
                )
            self._take(f"{asked} ({id})", id, place, resources["gpu_milli"])

    def _take(self, asked: str, id: str, place: dict[str, Any], milli: int) -> None:
        host = place["host"]
        for index in place["gpu_indexes"]:
            left = self._free.get((host, index), DEVICE_MILLI) - milli
            if left < DEVICE_MILLI - self._devices[host, index].get("share_milli", DEVICE_MILLI):
                self.fail("a device is given out twice", asked=f"{asked}: {milli} of {host}/{index}", found=f"{left}")
            self._take_whole(asked, f"{id} {index}", self._devices[host, index])
            self._free[host, index] = left
        self._held[id] = (host, tuple(place["gpu_indexes"]), milli)

    def _take_whole(self, asked: str, id: str, device: dict[str, Any]) -> None:
        """Note that of the GPU that *device* is, or is a part of, this much is given out: all of it, or a part."""
        whole, in_parts = device.get("parent", device["uuid"]), "parent" in device
        others = [other for other, held in self._wholes.items() if held == (whole, not in_parts)]
        if others:
            self.fail("a GPU is given out as a whole and in parts", asked=f"{asked}: {device['uuid']}", found=others[0])
        self._wholes[id] = whole, in_parts


class RunningTogether(Checker):
    """Checks what hosts really run: never more than a whole device at once, never two attempts of one job.

    Members of a gang run beside each other, as long as they are of one attempt and each runs once.
    By true time, whatever the hosts' clocks show; what stands still with its host does not run.
    """

    def __init__(self) -> None:
        self._running: dict[str, AttemptProcess] = {}
        self._still: set[str] = set()
        self._killed: set[str] = set()

    def started(self, process: AttemptProcess, now_us: int) -> None:
        """Look at what runs beside it."""
        for index in process.gpus:
            beside = [p for p in self._running.values() if p.host == process.host and index in p.gpus]
            used = sum(p.gpu_milli for p in beside) + process.gpu_milli
            if used > DEVICE_MILLI:
                self.fail(
                    "two owners believe they hold one device",
                    asked=f"{process.attempt_id} (token {process.token}) on {process.host}/{index}",
                    found=f"{used} thousandths in use, with {', '.join(p.attempt_id for p in beside)}",
                )
        cpu_milli = process.cpu_milli + sum(p.cpu_milli for p in self._running.values() if p.host == process.host)
        if cpu_milli > process.host_cpu_milli:
            self.fail(
                "two owners believe they hold one place",
                asked=f"{process.attempt_id} (token {process.token}) on {process.host}",
                found=f"{cpu_milli} thousandths of CPUs in use of {process.host_cpu_milli}",
            )
        self._refuse_twin(process)
        self._running[process.attempt_id] = process

    def suspended(self, host: str) -> None:
        """What runs there counts again when the host goes on."""
        self._still.add(host)

    def resumed(self, host: str) -> None:
        """Look at what runs beside what has slept."""
        self._still.discard(host)
        for process in list(self._running.values()):
            if process.host == host and process.attempt_id not in self._killed:
                self._refuse_twin(process)

    def _refuse_twin(self, process: AttemptProcess) -> None:
        active = (p for p in self._running.values() if p.host not in self._still and p.attempt_id not in self._killed)
        others = (p for p in active if p is not process and not _beside(p, process))
        twin = next((p for p in others if p.job_id == process.job_id), None)
        if twin is not None:
            self.fail(
                "two attempts of one job run at once",
                asked=f"{process.attempt_id} on {process.host}",
                found=f"{twin.attempt_id} on {twin.host}",
            )

    def killed(self, process: AttemptProcess) -> None:
        """Note that a killed process does nothing any more, but that its devices are not free."""
        self._killed.add(process.attempt_id)

    def ended(self, process: AttemptProcess, now_us: int) -> None:
        """Note that an ended process holds nothing any more."""
        self._running.pop(process.attempt_id, None)


def _beside(one: AttemptProcess, other: AttemptProcess) -> bool:
    """Whether two processes are different members of one attempt."""
    return one.attempt_id != other.attempt_id and attempt_of(one.attempt_id) == attempt_of(other.attempt_id)
