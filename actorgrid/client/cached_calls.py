"""By what steps of a graph that is sent are found again: the digest of each call, and the steps that it takes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cache_keys import CallDigests

if TYPE_CHECKING:
    from .dag import Step, _Step


class CachedCalls:
    """Of one graph's *steps*."""

    def __init__(self, steps: list[_Step]) -> None:
        self._steps = steps
        self._digests = CallDigests()
        self._values: dict[int, bytes] = {}

    def of_step(self, number: int, *, refresh: bool) -> dict[str, Any]:
        """The field ``cache`` of a step that is a call. Raises InvalidGraph."""
        takes: dict[int, int] = {}
        digest = self._of_call(number, takes)
        found: dict[str, Any] = {"call": digest, "takes": [self._steps[each].request["id"] for each in takes]}
        return {**found, "refresh": True} if refresh else found

    def _of_call(self, number: int, takes: dict[int, int]) -> str:
        """Of a call, or of one that is inlined; the steps that it takes from are put into *takes*, by their place."""
        step = self._steps[number]
        assert step.call is not None, "a step that is kept is a call"

        def stands_for(other: Step[Any]) -> Any:
            kind = self._steps[other.number].request["kind"]
            if kind == "value":
                return "value", self._value(other.number)
            if kind == "inline":
                inner = self._of_call(other.number, takes)
                self._digests.resume(stands_for)
                return "inline", inner
            return "taken", takes.setdefault(other.number, len(takes))

        fn, args, kwargs = step.call
        what = f"step {step.request['id']}"
        return self._digests.of_call(fn, args, kwargs, stands_for, what, step.how.get("until"))

    def _value(self, number: int) -> bytes:
        if number not in self._values:
            self._values[number] = CallDigests().of_value(self._steps[number].value)
        return self._values[number]
