"""Which host a person means (by its number, name, address, or the beginning of its id), and what a host is called."""

from __future__ import annotations

from typing import Any

from actorgrid.errors import BadRequest, NotFound

from .call import CommandContext

SHOWN = 5
Host = dict[str, Any]


def find_host(hosts: list[Host], text: str) -> Host:
    """The one of *hosts* that *name* means. Raises NotFound, or BadRequest when several could be meant."""
    by_number = [host for host in hosts if text.isdecimal() and host.get("node") == int(text)]
    exact = [host for host in hosts if text in (host["node_id"], host["hostname"], host["ip_address"], address(host))]
    begun = [host for host in hosts if len(text) >= 4 and str(host["node_id"]).startswith(text)]
    for found in (by_number, exact, begun):
        if len(found) == 1:
            return found[0]
        if found:
            raise BadRequest(
                f"{len(found)} hosts are called {text!r}",
                asked=text,
                found=", ".join(title(host) for host in found[:SHOWN]),
                hint="say which by its number: the NODE of actorgrid hosts",
            )
    raise NotFound(
        f"no host is called {text!r}",
        asked=text,
        found=", ".join(title(host) for host in hosts[:SHOWN]) + (", ..." if len(hosts) > SHOWN else ""),
        hint="actorgrid hosts lists them: by NODE, HOST or ADDRESS",
    )


def hostnames(call: CommandContext) -> dict[str, str]:
    """The names of all hosts, by their ids."""
    return {host["node_id"]: str(host["hostname"]) for host in call.http.get("/api/hosts")["hosts"]}


def address(host: Host) -> str:
    """The host's address, as ``hosts`` shows it."""
    return f"{host['ip_address']}:{host['port']}"


def title(host: Host) -> str:
    """The title of one host among several, which may share a name."""
    number = host.get("node")
    return str(host["hostname"]) if number is None else f"{number} ({host['hostname']}, {address(host)})"
