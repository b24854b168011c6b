"""What users have given a name in the ledger, schedules and services, as whoever asks may reach it by the name in the
path: somebody else's is not there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from actorgrid.actors.gateway.server.route import RequestContext
from actorgrid.actors.ledger.command import Command
from actorgrid.errors import ActorGridError

NAME_SHOWN_MAX = 80
Record = TypeVar("Record", bound=Mapping[str, object])


class NamedRecords(Generic[Record]):
    """All of one *kind* (``service``), with their owner in ``user_id``; *shown_by*: the command that lists them."""

    def __init__(
        self,
        kind: str,
        shown_by: str,
        unknown: type[ActorGridError],
        is_name: Callable[[str], bool],
        records: Callable[[RequestContext], Mapping[str, Record]],
    ) -> None:
        self._kind = kind
        self._shown_by = shown_by
        self._unknown = unknown
        self._is_name = is_name
        self._records = records

    def name(self, call: RequestContext) -> str:
        """The name in the path, if it can be one that is in reach. Raises what *unknown* is.

        To whoever reaches everything a name that this host does not know yet is one: the ledger has the last word.
        """
        name = call.part("name")
        if not self._is_name(name) or not (call.scope.is_all or self._reaches(call, self._records(call).get(name))):
            raise self._not_there(name, call)
        return name

    def record(self, call: RequestContext) -> Record:
        """What has the name in the path. Raises what *unknown* is."""
        name = call.part("name")
        record = self._records(call).get(name)
        if record is None or not self._reaches(call, record):
            raise self._not_there(name, call)
        return record

    async def propose(self, call: RequestContext, command: Command) -> Any:
        """Propose *command* about the one with the name in the path; where it is gone, say which there are."""
        try:
            return await call.propose(command)
        except self._unknown as error:
            raise self._not_there(call.part("name"), call) from error

    @staticmethod
    def _reaches(call: RequestContext, record: Record | None) -> bool:
        return record is not None and call.scope.covers(str(record["user_id"]))

    def _not_there(self, name: str, call: RequestContext) -> ActorGridError:
        asked = name[:NAME_SHOWN_MAX]
        known = [each for each, record in self._records(call).items() if self._reaches(call, record)]
        near = difflib.get_close_matches(asked, known, n=1, cutoff=0.6)
        return self._unknown(
            f"there is no {self._kind} {asked}",
            asked=asked,
            found=f"{len(known)} {self._kind}s",
            hint=f"did you mean {near[0]}?" if near else f"{self._shown_by} shows them",
        )
