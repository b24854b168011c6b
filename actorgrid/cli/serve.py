"""``serve``: a service of replicas that are kept running; ``rollout``: exchange them for others."""

from __future__ import annotations

from typing import Any

import click

from . import candidates
from .call import CommandContext, host_options, pass_call
from .service_options import kept_fields, read_file, service_body, service_options
from .work import request, work_options

_FILE = click.option(
    "-f",
    "--file",
    type=click.Path(exists=True, dir_okay=False),
    is_eager=True,
    callback=read_file,
    help="Options from this YAML file, by their names; name and command too.",
)


@click.command(name="serve")
@click.argument("service", metavar="NAME")
@_FILE
@service_options
@work_options
@host_options
@click.argument("words", metavar="-- CMD [ARGS]...", nargs=-1)
@pass_call
def serve(
    call: CommandContext,
    /,
    service: str,
    file: str | None,
    words: tuple[str, ...],
    **options: Any,
) -> None:
    """Keep replicas of a server running, wherever there is room.

    \b
        actorgrid serve chat --gpus 0.5 --replicas 1:4 --preset vllm --model Qwen/Qwen2.5-0.5B-Instruct
        actorgrid serve large --gang 2 --spread --gpus 8 --preset vllm --model meta-llama/Llama-3.1-405B-Instruct
        actorgrid serve site --protocol http --cpus 0.5 -- python -m http.server --bind 127.0.0.1 {port}

    {port} in CMD, and PORT in its environment, is where it has to listen, on 127.0.0.1. A replica gets requests once
    it has answered one (--ready-path: once that has), and is made anew when it ends or does not answer any more.
    """
    context = click.get_current_context()
    body, command = service_body(context, list(words), options)
    if not command:
        raise click.UsageError("no command: give it after --, or --preset with --model")
    body["job"] = request(call, command, None, **options)
    answer = _put(call, service, body)
    told = "it was so before" if answer["unchanged"] else _counts(answer["service"])
    call.answer(answer, f"{service}: {told}")


@click.command(name="rollout")
@click.argument("service", metavar="NAME", shell_complete=candidates.services)
@_FILE
@service_options
@work_options
@host_options
@click.argument("words", metavar="[-- CMD [ARGS]...]", nargs=-1)
@pass_call
def rollout(
    call: CommandContext,
    /,
    service: str,
    file: str | None,
    words: tuple[str, ...],
    **options: Any,
) -> None:
    """Exchange a service's replicas for others.

    Another CMD, other options: what is not said stays as it is.
    New replicas answer before old ones leave where there is room for both, else after. It goes back by itself where the
    new ones end, do not answer in time, or answer worse than the old; `rollback` does by hand.
    """
    from actorgrid.client.http import segment

    there = call.http.get(f"/api/services/{segment(service)}")  # refused where it is not there: else this made one
    context = click.get_current_context()
    body, command = service_body(context, list(words), options, there)
    body["keep"] = kept_fields(context, bool(command))
    body["job"] = request(call, command or ["true"], None, **options)
    body["replace"] = True
    answer = _put(call, service, body)
    view = answer["service"]
    to = view["rollout"]["to"] if view["rollout"] else view["revision"]
    told = (
        "it was so before" if answer["unchanged"] else f"revision {to} is on its way" if view["rollout"] else "changed"
    )
    call.answer(answer, f"{service}: {told}")


def _put(call: CommandContext, service: str, body: dict[str, Any]) -> dict[str, Any]:
    from actorgrid.client.http import segment

    answer: dict[str, Any] = call.http.put(f"/api/services/{segment(service)}", body)
    return answer


def _counts(view: dict[str, Any]) -> str:
    return f"revision {view['revision']}, {view['ready']} of {view['target']} replicas answer"
