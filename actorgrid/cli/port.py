"""``port``: a port of this machine that leads to one of a running job."""

from __future__ import annotations

import signal

import click

from actorgrid.errors import JobNotRunning

from . import candidates
from .call import CommandContext, host_command
from .printing import say
from .times import seconds

PORT_MAX = 65_535


def _ports(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, int | None]:
    """``PORT`` or ``PORT:LOCAL``."""
    first, colon, second = value.partition(":")
    if not first.isdecimal() or (colon and not second.isdecimal()):
        raise click.BadParameter(f"{value!r} is not of the form PORT or PORT:LOCAL, as in 8888 or 8888:9999")
    port, local = int(first), int(second) if colon else None
    if not 0 < port <= PORT_MAX or (local is not None and local > PORT_MAX):
        raise click.BadParameter(f"{value!r}: ports are from 1 to {PORT_MAX}; as LOCAL, 0 is any that is free")
    return port, local


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=candidates.jobs)
@click.argument("ports", metavar="PORT[:LOCAL]", callback=_ports)
@click.option("--rank", type=click.IntRange(0, 255), default=0, help="Of a gang: of this member.")
@click.option(
    "--wait", "wait_s", callback=seconds, default="0", metavar="TIME", help="Wait so long for the job to listen there."
)
@host_command
def command(call: CommandContext, job_id: str, ports: tuple[int, int | None], rank: int, wait_s: float) -> None:
    """Lead a port of this machine to a port on which a running job listens.

    \b
        actorgrid port 3f2a 8888
        actorgrid port 3f2a 8888:0 --wait 60s

    On whichever host the job runs. What is opened at 127.0.0.1:LOCAL (the same number, unless another is named; 0: any
    that is free) comes out there, at the job's port. Only ports on which a process of the job listens are led to. Goes
    on until Ctrl-C, or until the job ends. With --json, one document says the local port, when connections are taken.
    """
    from actorgrid.client.port_forward import LOOPBACK, PortForward

    from .lookup import find_job

    port, local = ports
    job = find_job(call.http, job_id)["job_id"]
    with PortForward(call.http, job, port, local, rank, lambda text: say(f"actorgrid: {text}", err=True)) as forward:
        forward.check_open(wait_s)
        url = f"http://{LOOPBACK}:{forward.local_port}"
        call.answer(
            {"job_id": job, "port": port, "local_port": forward.local_port, "url": url},
            f"{url} leads to port {port} of {job[:8]}; Ctrl-C ends it",
        )
        before = signal.signal(signal.SIGTERM, lambda _number, _frame: forward.close())
        try:
            forward.run()
        except JobNotRunning as error:
            say(f"actorgrid: {error.message}", err=True)
        except KeyboardInterrupt:
            return
        finally:
            signal.signal(signal.SIGTERM, before)
