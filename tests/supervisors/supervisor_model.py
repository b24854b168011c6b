"""OTP's supervisor as a plain synchronous program: what the decision core must come to once all is quiet.

Written from the reference manual alone. It starts and stops children by setting a flag, and tries again in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from actorgrid.supervisors.child import ChildSpec, SupervisorFlags


@dataclass
class Member:
    spec: ChildSpec
    up: bool = False
    failures: int = 0


@dataclass
class Model:
    flags: SupervisorFlags
    specs: list[ChildSpec]
    failing: dict[str, int] = field(default_factory=dict)  # so many starts of it fail
    now_s: float = 0.0
    over: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    restarts_at: list[float] = field(default_factory=list)
    number: int = 0

    @property
    def simple(self) -> bool:
        return self.flags.strategy == "simple_one_for_one"

    def live(self) -> list[str]:
        return [name for name, member in self.members.items() if member.up]

    def known(self) -> list[str]:
        return list(self.members)

    def start(self) -> None:
        if self.simple:
            return
        self.members = {spec.id: Member(spec) for spec in self.specs}
        for name in self.known():
            if not self._start(name):
                self._stop_all("start failed")
                return

    def _start(self, name: str) -> bool:
        member = self.members[name]
        if self.failing.get(name, 0):
            self.failing[name] -= 1
            member.failures += 1
            return False
        member.up, member.failures = True, 0
        return True

    def _stop_all(self, why: str) -> None:
        self.over = why
        for member in self.members.values():
            member.up = False

    def _goes(self, name: str) -> bool:
        return self.simple or self.members[name].spec.restart == "temporary"

    def exits(self, name: str, normal: bool) -> None:
        member = self.members[name]
        member.up = False
        kind = member.spec.restart
        if kind == "permanent" or (kind == "transient" and not normal):
            self._restart(name)
            return
        if self._goes(name):
            del self.members[name]
        significant_left = any(other.spec.significant and other.up for other in self.members.values())
        if member.spec.significant and (self.flags.auto_shutdown == "any_significant" or not significant_left):
            self._stop_all("auto_shutdown")

    def _restart(self, name: str) -> None:
        cause: str | None = name
        while cause is not None:
            self.restarts_at = [at for at in [*self.restarts_at, self.now_s] if self.now_s - at <= self.flags.period_s]
            if len(self.restarts_at) > self.flags.intensity:
                self._stop_all("intensity")
                return
            failures = self.members[cause].failures
            group = self._group(cause)
            for member in reversed(group):
                self.members[member].up = False
                if self._goes(member) and not self.simple:
                    del self.members[member]
            if failures:
                self.now_s += min(2.0, 0.1 * 2 ** (failures - 1))
            cause = next((member for member in group if member in self.members and not self._start(member)), None)

    def _group(self, cause: str) -> list[str]:
        order = self.known()
        if self.flags.strategy == "one_for_all":
            return order
        if self.flags.strategy == "rest_for_one":
            return order[order.index(cause) :]
        return [cause]

    def start_child(self, spec: ChildSpec) -> str:
        if self.simple:
            return "NotSupported"
        if spec.id in self.members:
            return "ChildExists"
        return self._start_new(spec.id, spec)

    def start_dynamic(self) -> str:
        if not self.simple:
            return "NotSupported"
        self.number += 1
        return self._start_new(f"{self.specs[0].id}:{self.number}", self.specs[0])

    def _start_new(self, name: str, spec: ChildSpec) -> str:
        self.members[name] = Member(spec)
        if self._start(name):
            return name
        del self.members[name]
        return "StartFailed"

    def terminate_child(self, name: str) -> str:
        if name not in self.members:
            return "NoSuchChild"
        self.members[name].up = False
        if self._goes(name):
            del self.members[name]
        return name

    def restart_child(self, name: str) -> str:
        if self.simple:
            return "NotSupported"
        if name not in self.members:
            return "NoSuchChild"
        if self.members[name].up:
            return "ChildExists"
        return name if self._start(name) else "StartFailed"

    def delete_child(self, name: str) -> str:
        if self.simple:
            return "NotSupported"
        if name not in self.members:
            return "NoSuchChild"
        if self.members[name].up:
            return "ChildExists"
        del self.members[name]
        return name
