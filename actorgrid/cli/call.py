"""One call of the command line: which host it speaks to and how it answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from .printing import say, say_json

if TYPE_CHECKING:
    from actorgrid.client.http import AdminHttp

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class CommandContext:
    """The values of the options that every command takes. ``http`` connects on first use."""

    def __init__(self) -> None:
        self.json = False
        self.data_dir: Path | None = None
        self.url: str | None = None
        self.ca_fingerprint: str | None = None
        self._http: AdminHttp | None = None
        self._plain_http: AdminHttp | None = None

    @property
    def http(self) -> AdminHttp:
        """Requests to the host, over one set of connections. Raises HostUnreachable when none can be found."""
        if self._http is None:
            self._http = self.new_http()
        return self._http

    @property
    def plain_http(self) -> AdminHttp:
        """The same, whose answers go into a file as they are: nothing in them is made fit for a terminal."""
        as_json, self.json = self.json, True
        try:
            if self._plain_http is None:
                self._plain_http = self.new_http()
        finally:
            self.json = as_json
        return self._plain_http

    def new_http(self) -> AdminHttp:
        """New connections, to a host looked for anew: an agent that came back may serve on another port."""
        from actorgrid.client.find import fingerprint, locate
        from actorgrid.client.http import AdminHttp

        from .terminal import TerminalHttp

        url, token = locate(self.data_dir, self.url)
        return (AdminHttp if self.json else TerminalHttp)(url, token, ca_fingerprint=fingerprint(self.ca_fingerprint))

    @property
    def speaks_to_this_machine_alone(self) -> bool:
        """Whether the host was found by its data directory, and is in no cluster: what runs there runs here."""
        import json

        from actorgrid.configs.paths import HostPaths

        if self.url or (self.data_dir is None and os.environ.get("ACTORGRID_URL")):
            return False
        try:
            agent = json.loads(HostPaths(self.resolved_data_dir).agent_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(agent, dict) and "cluster_id" not in agent

    @property
    def resolved_data_dir(self) -> Path:
        """The data directory these options mean, absolute."""
        from actorgrid.configs.paths import default_data_dir

        return (self.data_dir or default_data_dir()).expanduser().absolute()

    def close(self) -> None:
        """Close what was opened."""
        if self._http is not None:
            self._http.close()
            self._http = None
        if self._plain_http is not None:
            self._plain_http.close()
            self._plain_http = None

    def document(self, value: Any) -> None:
        """Print the one JSON document of a ``--json`` call, or one line of a stream of them."""
        say_json(value)

    def answer(self, value: Any, text: str) -> None:
        """Print *value* where ``--json`` asks for a document, else *text*, for people."""
        if self.json:
            self.document(value)
        else:
            say(text)


pass_call = click.make_pass_decorator(CommandContext, ensure=True)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        call = ctx.ensure_object(CommandContext)
        if value:
            setattr(call, name, value)
        return value

    return callback


def json_option(function: F) -> F:
    """``--json`` alone, for commands that need no host."""
    option = click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_keep("json"),
        help="Answer in JSON, on stdout.",
    )
    return option(function)


def host_options(function: F) -> F:
    """``--data-dir``, ``--url``, ``--ca-fingerprint`` and ``--json``, kept in the :class:`CommandContext`."""
    function = json_option(function)
    function = click.option(
        "--ca-fingerprint",
        metavar="SHA256",
        expose_value=False,
        callback=_keep("ca_fingerprint"),
        help="The cluster's authority, for https [$ACTORGRID_CA_FINGERPRINT].",
    )(function)
    function = click.option(
        "--url",
        metavar="URL[,URL]",
        expose_value=False,
        callback=_keep("url"),
        help="The agent's address, or several of a cluster [$ACTORGRID_URL].",
    )(function)
    return data_dir_option(function)


def host_command(function: Callable[Concatenate[CommandContext, P], R]) -> Callable[P, R]:
    """Takes the options of ``host_options`` and hands the command its :class:`CommandContext` first."""
    return host_options(pass_call(function))


def data_dir_option(function: F) -> F:
    """``--data-dir``, kept in the :class:`CommandContext`."""
    option = click.option(
        "--data-dir",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False),
        expose_value=False,
        callback=_keep("data_dir"),
        help="The host's data directory [$ACTORGRID_DATA_DIR].",
    )
    return option(function)


def config_option(function: F) -> F:
    """``--config DIR``, handed to the command as ``config_dir``."""
    option = click.option(
        "--config",
        "config_dir",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Directory of the YAML files; else DATA_DIR/config [$ACTORGRID_CONFIG].",
    )
    return option(function)
