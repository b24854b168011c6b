"""Completion in a shell: what is offered, also by a real bash, and that nothing a host or a user says can do harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from actorgrid.cli.call import CommandContext
from actorgrid.cli.main import COMMANDS, cli

from .conftest import Door, Host, Invoke, job


def offered(*words: str) -> dict[str, str | None]:
    """What is offered for the last of *words*, and what is said of it."""
    *before, begun = words
    shell = ShellComplete(cli, {"obj": CommandContext()}, "actorgrid", "_ACTORGRID_COMPLETE")
    return {item.value: item.help for item in shell.get_completions(list(before), begun)}


def test_commands_and_options_are_offered_with_what_they_do(alone: Invoke) -> None:
    assert offered("loc") == {"lock": COMMANDS["Work"]["lock"][1]}
    assert set(offered("log")) == {"login", "logout", "logs"}
    assert set(offered("")) == {name for section in COMMANDS.values() for name in section}
    assert "--follow" in offered("logs", "--fo")
    assert "--version" in offered("--v")


def test_jobs_are_offered_by_id_and_by_the_beginning_of_a_name(call: Invoke, door: Door) -> None:
    listed = [job("b2", "queued"), job("b1", name="eval")]

    def jobs(query: dict[str, str], _body: Any) -> dict[str, Any]:
        found = [each for each in listed if each["job_id"].startswith(query.get("prefix", ""))]
        return {"jobs": found, "total": len(found), "next": None}

    door.on("GET /api/jobs", jobs)
    assert offered("logs", "b") == {"b2": "queued: train", "b1": "running: eval"}
    assert offered("logs", "ev") == {"b1": "running: eval"}
    assert offered("cancel", "zz") == {}
    assert door.asked[-1][1]["state"] == "queued,placed,running", "who cancels is offered what can be cancelled"
    assert offered("run", "--after", "b1") == {"b1": "running: eval"}


def test_hosts_are_offered_by_name_or_by_number_where_several_share_one(call: Invoke, door: Door) -> None:
    hosts = [
        {"node": number, "node_id": f"id{number}", "hostname": name, "ip_address": "10.0.0.1", "port": 7400 + number}
        for number, name in enumerate(("node-a", "node-a", "big"), 1)
    ]
    door.on("GET /api/hosts", {"hosts": hosts})
    assert offered("drain", "") == {
        "1": "node-a, 10.0.0.1:7401",
        "2": "node-a, 10.0.0.1:7402",
        "big": "big, 10.0.0.1:7403",
    }
    assert set(offered("leave", "--host", "b")) == {"big"}
    assert set(offered("why", "host", "b")) == {"big"}


def test_locks_keys_and_settings_are_offered(call: Invoke, door: Door) -> None:
    door.on("GET /api/locks", {"locks": [{"name": "db/1", "holders": [1], "slots": 2}], "total": 1})
    door.on("GET /api/state", {"entries": [{"key": "hits", "type": "g_counter", "value": 3}]})
    door.on("GET /api/config", {"settings": [{"key": "work.kill_grace_s", "value": 10.0}]})
    assert offered("lock", "release", "d") == {"db/1": "1 of 2 held"}
    assert offered("state", "get", "h") == {"hits": "g_counter"}
    assert offered("config", "set", "work") == {"work.kill_grace_s": "now 10.0"}
    assert offered("config", "set", "logs") == {}


@pytest.mark.parametrize("name", ["a b", "$(reboot)", "`id`", "a;b", "a\nb", "\x1b[2J", "a'b", 'a"b', "a:b", "*", ""])
def test_a_name_that_a_shell_would_read_otherwise_is_not_offered(call: Invoke, door: Door, name: str) -> None:
    found = [{"key": key, "type": "a\x1b[2J\nb", "value": 1} for key in (name, "good")]
    door.on("GET /api/state", {"entries": found})
    assert list(offered("state", "get", "")) == ["good"]
    told = offered("state", "get", "")["good"]
    assert told is not None and told.isprintable()


def test_whoever_cannot_answer_offers_nothing_and_says_nothing(
    alone: Invoke, door: Door, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert offered("logs", "") == {}, "no agent"
    monkeypatch.setenv("ACTORGRID_URL", door.url)
    for answer in (b"nonsense", {"jobs": 7}, {}, [None]):
        door.on("GET /api/jobs", answer)
        assert offered("logs", "") == {}
    assert capfd.readouterr() == ("", "")


def test_the_url_on_the_line_is_the_one_that_is_asked(alone: Invoke, door: Door) -> None:
    door.on("GET /api/state", {"entries": [{"key": "hits", "type": "g_counter", "value": 3}]})
    assert offered("state", "get", "") == {}
    assert offered("state", "get", "--url", door.url, "") == {"hits": "g_counter"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(alone: Invoke, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = alone("completion", shell)
    assert done.exit_code == 0 and "_ACTORGRID_COMPLETE" in done.stdout
    monkeypatch.setenv("SHELL", f"/opt/bin/{shell}")
    assert alone("completion").stdout == done.stdout, "that of $SHELL"


def test_a_shell_that_is_not_known_is_refused_with_those_that_are(
    alone: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = alone("completion")
    assert done.exit_code == 2 and "tcsh" in done.stderr and "bash, zsh, fish" in done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed; the candidates are tested above")
def test_a_real_bash_completes_a_job_of_a_real_host(host: Host, tmp_path: Path) -> None:
    job_id = host.json("run", "--detach", "--json", "--name", "long-one", "--", "sleep", "60")["job_id"]
    try:
        program = tmp_path / "actorgrid"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m actorgrid "$@"\n')
        program.chmod(0o755)
        script = (
            'eval "$(actorgrid completion bash)"\n'
            'complete() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _actorgrid_completion actorgrid;'
            ' echo "${COMPREPLY[*]}"; }\n'
            f"complete actorgrid logs {job_id[:6]}\n"
            "complete actorgrid cancel long-o\n"
            "complete actorgrid eve\n"
        )
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "ACTORGRID_DATA_DIR": str(host.data_dir),
        }
        done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, env=environment)
        assert done.stdout.splitlines() == [job_id, job_id, "events"], done.stderr
    finally:
        host.json("cancel", job_id, "--json")
