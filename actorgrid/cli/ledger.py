"""``ledger``: check, show, back up and restore the files that the ledger is kept in."""

from __future__ import annotations

import time
from pathlib import Path

import click

from .call import CommandContext, data_dir_option, json_option, pass_call
from .printing import say
from .show import progress, size

STORAGE_CODE = 6
SHOWN_MAX = 1_000_000
SHOWN_ENTRIES_MAX = 20


@click.group()
def command() -> None:
    """Check, show, back up and restore the ledger's files."""


@command.command()
@data_dir_option
@json_option
@pass_call
def verify(call: CommandContext) -> int:
    """Check every byte of the log and the snapshots, and build the state that they hold.

    Changes nothing; the host may run. Exits with 6 when something is damaged.
    """
    from actorgrid.actors.consensus.ledger_check import check
    from actorgrid.configs.paths import HostPaths

    folder = HostPaths(call.resolved_data_dir).ledger_dir
    with progress(call.json) as report:
        found = check(folder, report)
    log, state = found.log, found.state
    document = {
        "ok": not found.problems,
        "problems": found.problems,
        "segments": log.segments,
        "bytes": log.size_bytes,
        "formats": sorted(log.formats),
        "records": dict(log.records),
        "first_index": log.base_index + 1,
        "last_index": log.last_index,
        "committed_index": found.committed_index,
        "torn_bytes": log.torn_bytes,
        "marked": log.marked,
        "no_commands": [{"index": each.index, "term": each.term, "reason": each.reason} for each in found.unreadable],
        "snapshots": [each.index for each in found.snapshots if each.intact],
        "term": state.term,
        "epoch": state.epoch,
        "jobs": len(state.jobs),
        "allocations": len(state.allocations),
        "hosts": len(state.hosts),
        "digest": state.digest(),
    }
    if call.json:
        call.document(document)
        return STORAGE_CODE if found.problems else 0
    say(f"log        {log.segments} segments, {size(log.size_bytes)}, entries {log.base_index + 1} to {log.last_index}")
    indexes = [str(each.index) for each in found.snapshots if each.intact]
    say(f"snapshots  {'at ' + ', '.join(indexes) if indexes else 'none'}")
    say(
        f"state      of entry {state.index}: term {state.term}, epoch {state.epoch}, {len(state.jobs)} jobs,"
        f" {len(state.allocations)} allocations, {len(state.hosts)} hosts"
    )
    if log.torn_bytes:
        say(f"note       {log.torn_bytes} bytes at the end were being written; nobody was told that they are there")
    if not log.marked and log.last_index:
        say(
            "note       the mark of how far the log was durable is missing (segments/acknowledged): entries lost from"
            " its end may not be noticed; the next start writes a new one"
        )
    for each in found.unreadable[:SHOWN_ENTRIES_MAX]:
        say(f"note       entry {each.index} of term {each.term} changes nothing: {each.reason}")
    if found.unreadable:
        say(
            f"note       {len(found.unreadable)} entries like that: who led in their term runs another program, or is"
            " turned against the cluster"
        )
    for problem in found.problems:
        say(f"{click.style('problem', fg='red')}    {problem}")
    say("nothing is wrong" if not found.problems else "what is there can still be used: make a backup of it now")
    return STORAGE_CODE if found.problems else 0


@command.command()
@click.option("--from", "first", type=click.IntRange(min=0), default=0, metavar="INDEX", help="Begin at this entry.")
@click.option("--to", "last", type=click.IntRange(min=0), default=2**63, metavar="INDEX", help="End with this entry.")
@click.option(
    "--limit", type=click.IntRange(1, SHOWN_MAX), default=1000, show_default=True, help="Show so many at most."
)
@data_dir_option
@json_option
@pass_call
def dump(call: CommandContext, first: int, last: int, limit: int) -> None:
    """Show the records of the log as they lie there, entries with their commands.

    With --json one document a line, with the commands whole. Entries that a later record cuts off are shown too.
    """
    import json
    from itertools import islice

    from actorgrid.actors.consensus.ledger_check import dump as records
    from actorgrid.configs.paths import HostPaths

    for record in islice(records(HostPaths(call.resolved_data_dir).ledger_dir / "segments", first, last), limit):
        if call.json:
            call.document(record)
            continue
        text = json.dumps(record.get("command")) if record.get("command") else ""
        place = "" if "index" not in record else f"{record['index']:>10} {record['term']:>6}"
        say(f"{place:<17}  {record['kind']:<11} {record.get('type') or '':<16} {text[:200]}".rstrip())


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@data_dir_option
@json_option
@pass_call
def backup(call: CommandContext, file: Path) -> None:
    """Write the ledger to a new FILE; the host may run.

    What was acknowledged a quarter of a second before is in it. It is checked before it gets its name.
    """
    from actorgrid.actors.consensus.ledger_backup import backup as make
    from actorgrid.configs.paths import HostPaths

    with progress(call.json) as report:
        made = make(HostPaths(call.resolved_data_dir).ledger_dir, file.expanduser().absolute(), report)
    call.answer(made, f"{made['path']}: {size(made['bytes'])}, the ledger up to entry {made['index']}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--replace", is_flag=True, help="Put the ledger that is there aside; it is kept.")
@data_dir_option
@json_option
@pass_call
def restore(call: CommandContext, file: Path, replace: bool) -> None:
    """Make the ledger what the backup FILE holds, in a new recovery epoch; the host must be stopped.

    Every token from then on is newer than any that was given out after the backup was made. The host is then the only
    voter; add the others again.
    """
    from actorgrid.actors.consensus.ledger_backup import restore as put_back
    from actorgrid.actors.host.enrolment import FIRST_NODE, kept_enrolment
    from actorgrid.actors.host.lock import AgentLock
    from actorgrid.actors.raft.messages import ConfState
    from actorgrid.configs.paths import HostPaths

    paths = HostPaths(call.resolved_data_dir)
    paths.make()
    place = kept_enrolment(paths)
    alone = ConfState(voters=(FIRST_NODE if place is None else place.node,))
    with AgentLock(paths.lock_file), progress(call.json) as report:
        done = put_back(file.expanduser().absolute(), paths.ledger_dir, time.time(), alone, replace, report)
    paths.leave()
    if call.json:
        call.document(done)
        return
    say(f"{done['path']}: entry {done['index']}, epoch {done['epoch']}, {done['jobs']} jobs, {done['hosts']} hosts")
    if done["kept"]:
        say(f"the ledger that was there is in {done['kept']}")


@command.command()
@click.option("--lone-survivor", "survivor", is_flag=True, help="Say that the other voters are gone for good.")
@data_dir_option
@json_option
@pass_call
def recover(call: CommandContext, survivor: bool) -> None:
    """Go on with this host alone, when a majority of the voters is gone for good; its agent must be stopped.

    What only the others had is lost. They are removed with their work; who of them comes back is refused, and joins
    anew in an empty directory. Never start a majority of them again: they would go on as the old cluster.
    """
    from actorgrid.actors.consensus.recovery import recover as go_on
    from actorgrid.actors.files.identity import ensure_host_id
    from actorgrid.actors.host.enrolment import kept_enrolment
    from actorgrid.actors.host.lock import AgentLock
    from actorgrid.configs.paths import HostPaths
    from actorgrid.errors import WrongState

    if not survivor:
        raise click.UsageError("say that the other voters are gone for good: --lone-survivor")
    paths = HostPaths(call.resolved_data_dir)
    place = kept_enrolment(paths)
    if place is None:
        raise WrongState("this host is a member of no cluster", asked=str(paths.data_dir), found="no cluster.json")
    with AgentLock(paths.lock_file), progress(call.json) as report:
        done = go_on(paths.ledger_dir, ensure_host_id(paths), place.node, time.time(), report)
    has_key = any(paths.security_dir.glob("authority-*.key"))
    if call.json:
        call.document({**done, "has_authority_key": has_key})
        return
    say(f"{done['path']}: entry {done['index']}, epoch {done['epoch']}, {done['jobs']} jobs; one voter, this host")
    say(f"  removed   {', '.join(f'{id} (node {node})' for id, node in done['removed'].items()) or 'nobody'}")
    say(f"  kept      {done['unsure']} last entries that this host did not know to be committed")
    say("  lost      whatever was accepted by the others and had not come here yet")
    if not has_key:
        say("  note      this host did not vote, so it has no key of the authority: it cannot let hosts in")
    say(f"  before    {done['kept']}")
    say("  next      actorgrid up; the others join anew, in empty directories: actorgrid token create")
