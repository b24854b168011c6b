"""``monitoring``: write what Prometheus and Grafana need to watch this cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from actorgrid.errors import BadRequest

from .call import CommandContext, host_command
from .show import say_folded


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Write over files that are there.")
@host_command
def command(call: CommandContext, folder: Path, force: bool) -> None:
    """Write files for Prometheus and Grafana: targets, alerts, dashboards.

    They go into DIR. Of a cluster all hosts are named, with its authority; of a host by itself, that one. The key is
    not written: the last lines say how.
    """
    from actorgrid.client.pinned import authority_pem
    from actorgrid.monitoring.scrape_config import KEY_FILE

    members = call.http.get("/api/members")
    urls = [str(member["url"]) for member in members["members"] if member.get("url")]
    fingerprint = members.get("ca_fingerprint")
    authority = authority_pem(str(fingerprint), urls) if urls and fingerprint else ""
    urls = urls if authority else [call.http.url]
    written = _write(folder, _texts(urls, authority), force)
    call.answer(
        {"files": [str(path) for path in written], "targets": urls, "needs_key": True},
        "\n".join(str(path) for path in written),
    )
    if not call.json:
        _say_next(folder / KEY_FILE, of_a_cluster=bool(authority))


def _say_next(key: Path, of_a_cluster: bool) -> None:
    if of_a_cluster:
        say_folded(f"next: (umask 077; actorgrid key create --user prometheus --ttl 365d >{key})", err=True)
    else:
        say_folded(f"next: (umask 077; cp DATA_DIR/admin.token {key})", err=True)
    say_folded(f"then: prometheus --config.file {key.with_name('prometheus.yml')}", err=True)
    say_folded("Grafana: Dashboards, New, Import, each of the .json files", err=True)


def _texts(urls: list[str], authority: str) -> dict[str, str]:
    """The contents of each file, by its name."""
    from actorgrid.monitoring.alert_rules import rule_file
    from actorgrid.monitoring.dashboards import DASHBOARDS, dashboard_json
    from actorgrid.monitoring.scrape_config import CA_FILE, RULES_FILE, scrape_config

    texts = {"prometheus.yml": _yaml(scrape_config(urls)), RULES_FILE: _yaml(rule_file())}
    if authority:
        texts[CA_FILE] = authority
    for dashboard in DASHBOARDS:
        texts[f"{dashboard.uid}.json"] = json.dumps(dashboard_json(dashboard), indent=1) + "\n"
    return texts


def _yaml(document: Any) -> str:
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False, width=120))


def _write(folder: Path, texts: dict[str, str], force: bool) -> list[Path]:
    there = [name for name in texts if (folder / name).exists()]
    if there and not force:
        raise BadRequest(
            "there are such files already",
            asked=str(folder),
            found=", ".join(there),
            hint="--force writes over them; another directory keeps them",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise BadRequest(f"cannot write into {folder}: {error.strerror}", asked=str(folder)) from error
    return [folder / name for name in texts]
