"""``inspect``: every server's own word on its state."""

from __future__ import annotations

import click

from .call import Call, host_options, pass_call


@click.command()
@host_options
@pass_call
def command(call: Call) -> None:
    """Dump what the agent's processes say of themselves.

    Always JSON: indented for people, one line with --json. Made for debugging; its fields may change.
    """
    import json

    answer = call.http.get("/api/inspect")
    if call.json:
        call.document(answer)
    else:
        click.echo(json.dumps(answer, indent=2, default=str))
