"""``gpus total``: what the GPUs of all hosts read together."""

from __future__ import annotations

from typing import Any

import click

from .call import CommandContext, host_command
from .show import ago, number, say_folded, size


@click.command("total")
@host_command
def total(call: CommandContext) -> None:
    """Say what the GPUs of all hosts read together.

    Hosts tell each other: none is asked, so that it answers soon in a large cluster too.
    """
    answer = call.http.get("/api/gpus/total")
    if call.json:
        call.document(answer)
        return
    for line in _lines(answer):
        say_folded(line)


def _lines(answer: dict[str, Any]) -> list[str]:
    away = f", {answer['gpus_unavailable']} take nothing new" if answer["gpus_unavailable"] else ""
    unknown = f" (of {answer['hosts_unknown']} more nothing is known now)" if answer["hosts_unknown"] else ""
    power = "-" if answer["watts"] is None else f"{answer['watts'] / 1000:.1f} kW"
    return [
        f"gpus    {answer['gpus']} on {answer['hosts']} hosts{unknown}{away}",
        f"use     {number(answer['utilization_percent'], ' %')}",
        f"memory  {size(answer['memory_used_bytes'])} of {size(answer['memory_bytes'])}",
        f"power   {power}, hottest {number(answer['hottest_celsius'], ' °C')}",
        *([f"oldest  {ago(answer['oldest_at'])}"] if answer["oldest_at"] else []),
    ]
