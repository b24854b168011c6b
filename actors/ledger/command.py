"""What every command of the ledger has: a verb, a version, the proposer's clock, and fields that are checked.

A command is an instance of one class of ``commands``; in the log and on links it is a plain map of JSON values:
``type`` (the verb), ``v`` (the version), ``at`` and its fields. Nothing of the state is looked at here; whether that
allows a command is for ``state.py``.

A command of an unknown verb or a higher version is refused, not guessed at. A refusal of a committed entry is part of
what every voter must agree on, its words included. So what ``read_command`` says of it depends on the command and on
the version that the cluster has (docs/decisions/0017), never on how much more this program knows: a verb is known to
the version that it came with and to later ones, and so is a field.
"""

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, dataclass_transform, get_args, get_origin

from actorgrid.errors import HostsTooOld, LedgerTooNew
from actorgrid.supervisors.pickled_by_place import pickled_by_place

from .field_checks import (
    ABSENT,
    Check,
    Number,
    Plain,
    Since,
    check_fields,
    is_number,
    is_text,
    is_whole,
    or_none,
    refused,
)
from .record_types import MemberRecord

VERSION = 10
"""What this host knows. A host tells the others (``ledger_version`` of its member record)."""
HIDDEN = "(hidden)"
UNSTAMPED = 0.0
"""``at`` of a command that was made where no clock is read: whoever proposes it puts the time in."""


class Proposer(Enum):
    """Who may bring a command into the log (``consensus/admission.py`` judges by it, for hosts that are members)."""

    ITSELF = "a host, of itself"
    ITS_WORK = "the host that runs it"
    DOOR = "any host, for people at its doors"
    VOTER = "a host that votes: it gives rights, and whoever may propose it could become anybody"
    LEADER = "the leader: nobody else decides it"


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field is checked, and the version that it came with."""

    check: Check
    needed: bool
    since: int


@dataclass(frozen=True, slots=True)
class Command:
    """One change of the ledger, as one entry of the log holds it.

    ``at``: the proposer's clock, seconds since the epoch.
    """

    verb: ClassVar[str] = ""
    since: ClassVar[int] = 1
    """The version that this verb came with. A command carries it, so that an older host knows that it does not know it,
    and hosts which are newer do not propose it before all are (``refuse_if_too_new``). An entry that names the verb
    with a lower version is refused by everybody: the older hosts of then did."""
    changed: ClassVar[int] = 1
    """The version that its meaning changed with. Entries of a lower version keep the meaning that they had."""
    proposer: ClassVar[Proposer] = Proposer.LEADER
    new_work: ClassVar[bool] = False
    """Whether it is refused when the disk has no room for new work. All others are about work that was accepted, or
    about the cluster itself, and are recorded for as long as anything is."""
    of_term: ClassVar[bool] = False
    """Whether it was decided by the leader of its ``term``, and is void under another leadership."""
    known_fields: ClassVar[Mapping[str, _Field]] = {}
    must: ClassVar[Mapping[str, Check]] = {}
    may: ClassVar[Mapping[str, Check]] = {}

    at: Number = field(default=UNSTAMPED, kw_only=True)

    @property
    def format_version(self) -> int:
        """The lowest ledger version that knows this command with these fields."""
        return version_of(type(self), (name for name in self.known_fields if getattr(self, name) is not ABSENT))

    def to_plain(self) -> Plain:
        """The command as JSON has it."""
        own = {name: getattr(self, name) for name in self.known_fields}
        present = {name: _plain(value) for name, value in own.items() if value is not ABSENT}
        return {"type": self.verb, "v": self.format_version, "at": self.at, **present}

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check what the checks of single fields, which came before, cannot see. Raises BadRequest."""

    @classmethod
    def shown(cls, plain: Plain) -> Plain:
        """A command as people may see it: what its ``repr`` leaves out is secret."""
        secret = {each.name for each in fields(cls) if not each.repr}
        return {name: HIDDEN if name in secret else value for name, value in plain.items()}

    def about_host(self) -> object:
        """The id of the host that the command is about, where a host proposes it about itself; else ``None``."""
        return getattr(self, "host_id", None) or getattr(self, "host", None)

    @classmethod
    def _from_plain(cls, plain: Plain) -> Self:
        return cls(at=plain["at"], **{name: plain[name] for name in cls.known_fields if name in plain})


VERBS: dict[str, type[Command]] = {}
"""Every command there is, by its verb."""
_C = TypeVar("_C", bound=Command)
_ENTRY: Mapping[str, Check] = {"type": is_text, "v": is_whole, "at": is_number}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def verb(name: str, proposer: Proposer, *, since: int = 1, new_work: bool = False) -> Callable[[type[_C]], type[_C]]:
    """Make the class the command *name*: a frozen dataclass whose fields are checked as their types say.

    A type is annotated with its check, and with ``Since`` for a field that came later. ``X | None``: it may be null.
    A field without a default must be there; one whose default is ``ABSENT`` is not written when it holds that.
    """

    def made(cls: type[_C]) -> type[_C]:
        command = pickled_by_place(dataclass(frozen=True, slots=True)(cls))
        known = {
            each.name: _field(each.type, each.default is MISSING and each.default_factory is MISSING)
            for each in fields(command)
            if each.name != "at"
        }
        command.verb, command.proposer, command.since, command.new_work = name, proposer, since, new_work
        command.known_fields = known
        command.must = {each: its.check for each, its in known.items() if its.needed}
        command.may = {each: its.check for each, its in known.items() if not its.needed}
        command.of_term = proposer is Proposer.LEADER and "term" in known and name != "new_term"
        VERBS[name] = command
        return command

    return made


def _field(annotation: Any, needed: bool) -> _Field:
    """The check that an annotation names, and the version that its field came with."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    nullable = type(None) in options
    (annotated,) = (each for each in options if get_origin(each) is Annotated)
    check, *more = get_args(annotated)[1:]
    since = next((each.version for each in more if isinstance(each, Since)), 1)
    return _Field(or_none(check) if nullable else check, needed, since)


def _plain(value: Any) -> Any:
    """*value* with its tuples as lists, as JSON has them."""
    if isinstance(value, tuple | list):
        return [_plain(each) if isinstance(each, tuple | list) else each for each in value]
    return value


# -- versions


def version_of(command: type[Command], names: Iterable[str] = ()) -> int:
    """The lowest version that knows this *command* with fields of these *names*."""
    later = [command.known_fields[name].since for name in names if name in command.known_fields]
    return max([command.since, command.changed, *later])


def cluster_version(members: Mapping[str, MemberRecord]) -> int:
    """The ledger version that every member knows, by the replicated state; without a cluster, any."""
    return min((int(member.get("ledger_version", 1)) for member in members.values()), default=2**53)


def refuse_if_too_new(command: Command, members: Mapping[str, MemberRecord], version: int | None = None) -> None:
    """Raises HostsTooOld while a member does not know *command*: it would refuse what all others carry out, and its
    state would be another from then on. *version*: what it says of itself, where it came from another host.
    """
    version = command.format_version if version is None else version
    if version <= 1:
        return
    old = sorted(host_id for host_id, member in members.items() if member.get("ledger_version", 1) < version)
    if old:
        raise HostsTooOld(
            f"some hosts do not know {command.verb} yet",
            asked=f"format version {version}",
            found=f"{len(old)} of {len(members)} hosts are older: {', '.join(old[:3])}" + ", ..." * (len(old) > 3),
            hint="upgrade them: actorgrid upgrade --rolling",
        )


# -- from plain values


def read_command(plain: object, members: Mapping[str, MemberRecord] | None = None) -> Command:
    """The command, with the fields that its version has, when it is well formed: before it is proposed, or, with the
    *members* of then, as an entry.

    Raises BadRequest that names the field; for an entry that all members know, and this program does not, LedgerTooNew.
    """
    if not isinstance(plain, dict):
        raise refused("a command is a dict", found=type(plain).__name__)
    check_fields("command", plain, _ENTRY, {})
    name, version = plain["type"], plain["v"]
    known = 1 if version <= 1 else VERSION if members is None else cluster_version(members)
    if version > known:
        raise refused(
            f"the command {name!r} is of format version {version}",
            found=f"this host knows versions up to {known}",
            hint="upgrade this host",
        )
    if version > VERSION:
        raise LedgerTooNew(
            "the ledger holds what this version of the program does not know",
            asked=f"{name} of format version {version}",
            found=f"this host knows versions up to {VERSION}; the program that was here before knew more",
            hint="start this host with the version that it had before, or a later one",
        )
    command = VERBS.get(name)
    if command is None or command.since > version:
        names = sorted(each for each, its in VERBS.items() if its.since <= version)
        raise refused(f"there is no command {name!r}", found=f"known: {', '.join(names)}")
    # In entries of a lower version a field that came later is no field, as it was none to the older hosts of then.
    later = [each for each, its in command.known_fields.items() if its.since > version and each in plain]
    if later:
        plain = {each: value for each, value in plain.items() if each not in later}
    check_fields(name, plain, command.must, command.may)
    command.check(plain)
    return command._from_plain(plain)
