"""``tenant``: who shares the cluster, by which weights, guarantees and limits; creating, changing, removing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .call import CommandContext, host_command, host_options
from .printing import say
from .quota import QuotaCommands
from .show import size, table
from .work import size_text

_F = TypeVar("_F", bound=Callable[..., Any])
_COUNT = click.FloatRange(0, 1_000_000)


@click.group(cls=QuotaCommands, invoke_without_command=True)
@host_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show tenants that share the cluster; create, change, remove them.

    From the first that is created on, waiting jobs of several are ordered by their shares.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(CommandContext))


@command.command("list")
@host_command
def list_(call: CommandContext) -> None:
    """Show tenants: what each holds, of which guarantee and limit, and its share."""
    _list(call)


@command.command("show")
@click.argument("name")
@host_command
def show(call: CommandContext, name: str) -> None:
    """Show what the tenant NAME is given, holds, held of late and has waiting."""
    from actorgrid.client.http import segment

    tenant = call.http.get(f"/api/tenants/{segment(name)}")
    if call.json:
        call.document(tenant)
        return
    rows = [
        [word, _amount(key, tenant["used"][key]), *(_limit(key, tenant[part][key]) for part in ("guarantee", "limits"))]
        for key, word in _COLUMNS.items()
    ]
    by_model = {part: tenant[part]["gpus_by_model"] for part in ("used", "guarantee", "limits")}
    for model in sorted({model for amounts in by_model.values() for model in amounts}):
        rows.append(
            [
                model,
                f"{by_model['used'].get(model, 0):g}",
                *(_limit("gpus", by_model[part].get(model)) for part in ("guarantee", "limits")),
            ]
        )
    rows.append(["waiting jobs", str(tenant["jobs_waiting"]), "-", _limit("jobs", tenant["limits"]["jobs_waiting"])])
    waiting = [size(tenant["waiting_bytes"]), "-", _limit("_bytes", tenant["limits"]["waiting_bytes"])]
    rows.append(["their size", *waiting])
    say(_line(tenant))
    table(["OF", "HOLDS>", "GUARANTEE>", "LIMIT>"], rows, "")


def _terms(command: _F) -> _F:
    for option in (
        click.option("--weight", type=click.FloatRange(0.001, 1000), metavar="W", help="Beside others; 1 by default."),
        click.option("--guarantee-gpus", type=_COUNT, metavar="N", help="GPUs that it has whenever it wants them."),
        click.option("--guarantee-model", multiple=True, metavar="MODEL=N", help="The same, of one model."),
        click.option("--guarantee-gpu-memory", callback=size_text, metavar="SIZE", help="GPU memory, the same way."),
        click.option("--guarantee-cpus", type=_COUNT, metavar="N", help="CPUs, the same way."),
        click.option("--guarantee-memory", callback=size_text, metavar="SIZE", help="Memory, the same way."),
        click.option("--no-guarantee", is_flag=True, help="Guarantee nothing any more."),
        click.option("--gpus", type=_COUNT, metavar="N", help="GPUs at once, at most."),
        click.option("--model", multiple=True, metavar="MODEL=N", help="GPUs of one model at once, at most."),
        click.option("--gpu-memory", callback=size_text, metavar="SIZE", help="GPU memory, at most."),
        click.option("--cpus", type=_COUNT, metavar="N", help="CPUs, at most."),
        click.option("--memory", callback=size_text, metavar="SIZE", help="Host memory, at most."),
        click.option("--waiting", type=click.IntRange(0, 2**31), metavar="N", help="Jobs that may wait."),
        click.option("--waiting-size", callback=size_text, metavar="SIZE", help="What its waiting jobs may take."),
        click.option("--unlimited", is_flag=True, help="Without limits from now on."),
    ):
        command = option(command)
    return command


@command.command("create")
@click.argument("name")
@_terms
@host_command
def create(call: CommandContext, /, name: str, **terms: Any) -> None:
    """Create the tenant NAME."""
    _answer(call, call.http.post("/api/tenants", {"name": name, **_body(**terms)}))


@command.command("set")
@click.argument("name")
@_terms
@host_command
def set_(call: CommandContext, /, name: str, **terms: Any) -> None:
    """Give the tenant NAME other terms.

    What is not given stays; a guarantee, or limits, replace all that there were. What runs goes on.
    """
    from actorgrid.client.http import segment

    body = _body(**terms)
    if not body:
        raise click.UsageError("say what is to be another: --weight, a guarantee or a limit")
    _answer(call, call.http.put(f"/api/tenants/{segment(name)}", body))


@command.command("rm")
@click.argument("name")
@host_command
def remove(call: CommandContext, name: str) -> None:
    """Remove the tenant NAME: its keys open nothing, nothing of it starts, and what it runs is ended."""
    from actorgrid.client.http import segment

    answer = call.http.delete(f"/api/tenants/{segment(name)}", patient=False)
    left = "; some is left: remove it again" if answer["more"] else ""
    ended = f"{answer['cancelled']} job(s) cancelled, {answer['sessions']} session(s) closed"
    call.answer(answer, f"{name}: removed, {ended}{left}")


def _body(
    weight: float | None,
    no_guarantee: bool,
    unlimited: bool,
    model: tuple[str, ...],
    guarantee_model: tuple[str, ...],
    waiting: int | None,
    waiting_size: str | None,
    **amounts: Any,
) -> dict[str, Any]:
    """The terms that the options say."""
    names = ("gpus", "gpu_memory", "cpus", "memory")
    guarantee = {name: amounts[f"guarantee_{name}"] for name in names} | {"gpus_by_model": _models(guarantee_model)}
    limits = {name: amounts[name] for name in names} | {"gpus_by_model": _models(model)}
    limits |= {"jobs_waiting": waiting, "waiting_bytes": waiting_size}
    body: dict[str, Any] = {} if weight is None else {"weight": weight}
    for word, given, nothing in (("guarantee", guarantee, no_guarantee), ("limits", limits, unlimited)):
        kept = {name: amount for name, amount in given.items() if amount not in (None, {})}
        if kept and nothing:
            raise click.UsageError("--no-guarantee and --unlimited stand alone")
        if kept or nothing:
            body[word] = kept
    return body


def _models(texts: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, _, count = text.rpartition("=")
        try:
            found[name] = float(count)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not MODEL=N; write for example H100=8") from None
        if not name:
            raise click.BadParameter(f"{text!r} names no model; write for example H100=8")
    return found


_COLUMNS = {"gpus": "GPUs", "gpu_memory_bytes": "GPU memory", "cpus": "CPUs", "memory_bytes": "memory"}


def _list(call: CommandContext) -> None:
    tenants = call.http.get("/api/tenants")["tenants"]
    if call.json:
        call.document({"tenants": tenants})
        return
    rows = [
        [
            tenant["name"],
            "removed" if tenant["removed_at"] else "" if tenant["known"] else "not created",
            f"{tenant['weight']:g}",
            f"{100 * tenant['share']:.1f} %",
            *(
                f"{_amount(key, tenant['used'][key])} / {_limit(key, tenant['guarantee'][key])} / "
                f"{_limit(key, tenant['limits'][key])}"
                for key in _COLUMNS
            ),
            str(tenant["jobs_waiting"]),
        ]
        for tenant in tenants
    ]
    words = [f"{word.upper()}>" for word in _COLUMNS.values()]
    table(["TENANT", "STATE", "WEIGHT>", "SHARE>", *words, "WAITING>"], rows, "no tenants, and nobody holds anything")


def _answer(call: CommandContext, tenant: dict[str, Any]) -> None:
    call.answer(tenant, _line(tenant))


def _line(tenant: dict[str, Any]) -> str:
    of = f" of {tenant['share_of'].removeprefix('gpu:')}" if tenant["share_of"] else ""
    removed = ", removed" if tenant["removed_at"] else ""
    return f"{tenant['name']}: weight {tenant['weight']:g}, share {100 * tenant['share']:.1f} %{of}{removed}"


def _amount(name: str, amount: float) -> str:
    if name.endswith("_bytes"):
        return size(int(amount)) if amount else "0"
    return f"{amount:g}"


def _limit(name: str, amount: float | None) -> str:
    return "-" if amount is None else _amount(name, amount)
