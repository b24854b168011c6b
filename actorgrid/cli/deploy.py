"""``deploy``: new code for the light processes of a set, while they live."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from .call import CommandContext, host_command
from .printing import say
from .times import seconds

EXIT_TAKEN_BACK = 1


def _share(_ctx: click.Context, _parameter: click.Parameter, text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"{text!r} is no share: 10%, or 0.1")
    return share


@click.command()
@click.argument("module", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "group", metavar="SET", required=True, help="The set of light processes.")
@click.option(
    "--canary", default="100%", show_default=True, metavar="SHARE", callback=_share, help="So many first, then all."
)
@click.option(
    "--watch", "watch_s", default="5s", show_default=True, callback=seconds, help="How long crashes are counted."
)
@click.option("--crashes", default=3, show_default=True, help="More in one shard meanwhile, and it is taken back.")
@host_command
def command(call: CommandContext, module: Path, group: str, canary: float, watch_s: float, crashes: int) -> None:
    """Give living light processes the classes of MODULE's new source.

    Each class follows the one of the same name, process by process, between two messages, in the order of the file.
    First --canary of the processes, for --watch; then all. If a code_change fails, or changed processes crash too
    often, all have the code of before again, and the command exits with 1.
    """
    from actorgrid.client.client import connect

    source = module.read_text(encoding="utf-8")
    with closing(connect(call.url, data_dir=call.data_dir, ca_fingerprint=call.ca_fingerprint)) as client:
        shards = client.shards(group)
        done = shards.deploy(source, module.stem, canary, watch_s, crashes)
        if done.stays and canary < 1:
            if not call.json:
                first = sum(each.changed for each in done.reports)
                say(f"version {done.version.number}: {first} changed, and they work")
            done = shards.widen_deploy(done.version, 1.0, watch_s)
    changed = sum(each.changed for each in done.reports)
    call.answer(
        {
            "version": done.version.number,
            "stays": done.stays,
            "changed": changed,
            "skipped": sum(each.skipped for each in done.reports),
            "why": list(done.why),
        },
        f"version {done.version.number}: {changed} changed"
        if done.stays
        else "\n".join([f"version {done.version.number} was taken back", *done.why]),
    )
    if not done.stays:
        raise SystemExit(EXIT_TAKEN_BACK)
