"""The root: help that costs nothing, suggestions, and one way to fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from actorgrid.cli.main import COMMANDS, cli
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    DiskFull,
    HostUnreachable,
    QueueFull,
    UnknownJob,
    WrongToken,
)
from tests.measure import CARRIER

from .conftest import Door, Invoke

NAMES = [name for section in COMMANDS.values() for name in section]
DEAR = ["pydantic", "pydantic_core", "aiohttp", "rich", "thespian", "http.client", "yaml", "asyncio", "psutil", "json"]


def test_help_loads_neither_commands_nor_dear_modules() -> None:
    code = (
        "import sys\n"
        "from actorgrid.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as left:\n    assert left.code == 0, left.code\n"
        f"print('DEAR', [name for name in {DEAR} if name in sys.modules])\n"
        "print('OWN', sorted(name for name in sys.modules if name.startswith('actorgrid')))\n"
    )
    measures = (CARRIER, "COVERAGE_")  # being measured loads modules
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith(measures)}
    arguments = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=unmeasured)
    assert "DEAR []" in done.stdout
    assert (
        "OWN ['actorgrid', 'actorgrid.cli', 'actorgrid.cli.call', 'actorgrid.cli.main', 'actorgrid.cli.printing', "
        "'actorgrid.errors']" in done.stdout
    )


def test_status_loads_no_dear_modules(door: Door) -> None:
    door.on("GET /api/cluster", {"health": "healthy", "ready": True, "jobs": {}})
    dear = [name for name in DEAR if name not in ("http.client", "json")]
    code = (
        "import sys\n"
        "from actorgrid.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as left:\n    assert left.code == 0, left.code\n"
        f"print('DEAR', [name for name in {dear} if name in sys.modules])\n"
    )
    arguments = [sys.executable, "-c", code, "status", "--url", door.url]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "DEAR []" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_what_the_root_says_of_a_command_is_what_the_command_says(name: str) -> None:
    context = click.Context(cli, info_name="actorgrid")
    command = cli.get_command(context, name)
    assert command is not None
    said = next(section[name][1] for section in COMMANDS.values() if name in section)
    assert (command.help or "").split("\n\n")[0].replace("\n", " ").strip() == said


def leaves_of(command: click.Command) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return [command]
    return [leaf for each in command.commands.values() for leaf in leaves_of(each)]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_and_answers_in_json(alone: Invoke, name: str) -> None:
    result = alone(name, "--help")
    assert result.exit_code == 0
    context = click.Context(cli, info_name="actorgrid")
    command = cli.get_command(context, name)
    assert command is not None
    for leaf in leaves_of(command):
        options = {option for parameter in leaf.params for option in parameter.opts}
        assert "--json" in options, leaf.name
        of_no_host = ("version", "demo", "replay", "chaos", "completion", "timeline")
        assert name in of_no_host or "--data-dir" in options, leaf.name


def test_help_tells_the_exit_codes(alone: Invoke) -> None:
    result = alone("--help")
    assert "Exit codes: 0 done; 1 failed; 2 wrong use" in result.stdout
    assert alone().stdout == result.stdout


def test_a_misspelt_command_is_guessed(alone: Invoke) -> None:
    result = alone("stauts")
    assert result.exit_code == 2
    assert "there is no command 'stauts'. Did you mean 'status'?" in result.stderr
    assert result.stdout == ""


def test_a_misspelt_subcommand_is_guessed(alone: Invoke) -> None:
    result = alone("state", "gett", "k")
    assert result.exit_code == 2
    assert "there is no command 'state gett'. Did you mean 'get'?" in result.stderr


def test_a_misspelt_option_is_guessed(alone: Invoke) -> None:
    result = alone("ps", "--al")
    assert result.exit_code == 2
    assert "--all" in result.stderr and "actorgrid ps --help" in result.stderr


def test_an_option_before_the_command_is_told_its_place(alone: Invoke) -> None:
    result = alone("--data-dir", "x", "status")
    assert result.exit_code == 2
    assert "actorgrid COMMAND --data-dir" in result.stderr


def test_wrong_use_is_a_document_under_json(alone: Invoke) -> None:
    result = alone("ps", "--json", "--al")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "BadRequest"
    assert result.stderr == ""


def test_json_of_the_command_that_is_run_is_not_ours(alone: Invoke) -> None:
    result = alone("run", "--nonsense", "--", "tool", "--json")
    assert result.exit_code == 2 and result.stdout == "" and "--nonsense" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ActorGridError("m"), 1),
        (BadRequest("m"), 2),
        (WrongToken("m"), 3),
        (UnknownJob("m"), 4),
        (HostUnreachable("m"), 5),
        (DiskFull("m"), 6),
        (QueueFull("m"), 7),
    ],
    ids=lambda value: value.code if isinstance(value, ActorGridError) else str(value),
)
def test_a_named_error_has_its_exit_code_hint_and_document(
    call: Invoke, door: Door, error: ActorGridError, code: int
) -> None:
    error.asked, error.found, error.hint = "this", "that", "the other"
    door.fail("GET /api/hosts", error)
    result = call("hosts")
    assert result.exit_code == code
    assert result.stderr == "error: m\n  asked: this\n  found: that\n  try: the other\n"
    assert result.stdout == ""
    result = call("hosts", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout) == {"error": error.to_dict()}
    assert result.stderr == ""


def test_without_an_agent_commands_say_how_to_start_one(alone: Invoke) -> None:
    result = alone("status")
    assert result.exit_code == 5
    assert "no agent runs on" in result.stderr and "actorgrid up" in result.stderr


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m actorgrid config list --data-dir {tmp_path} | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
    assert done.stdout.startswith("SETTING")


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_the_version_is_told(alone: Invoke, arguments: list[str]) -> None:
    from actorgrid import __version__

    assert __version__ in alone(*arguments).stdout


def test_version_in_json(alone: Invoke) -> None:
    assert json.loads(alone("version", "--json").stdout)["hotpath"] in ("compiled", "plain Python")


def test_colours_stay_where_they_are_seen(alone: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in alone("status", color=True).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in alone("status", color=True).stderr


@pytest.mark.parametrize("arguments", [("--join", "gpu-1"), ("--token", "agj1.x")])
def test_a_join_needs_both_member_and_token(alone: Invoke, arguments: tuple[str, ...]) -> None:
    result = alone("up", *arguments)
    assert result.exit_code == 2 and "go together" in result.stderr


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["down"], "actorgrid cancel JOB"),
        (["stop"], "Ctrl-C"),
        (["top"], "actorgrid ps --watch"),
        (["squeue"], "actorgrid ps"),
        (["srun", "x"], "actorgrid run -- CMD"),
        (["sbatch", "x"], "actorgrid submit"),
        (["scancel", "1"], "actorgrid cancel"),
        (["salloc", "x"], "actorgrid run"),
        (["run", "-it", "--", "bash"], "--pty"),
        (["run", "--gpus", "all", "--", "x"], "actorgrid gpus"),
        (["run", "--gpus", "H100:2", "--", "x"], "--gpu-model H100"),
        (["run", "--mem", "4G", "--", "x"], "--memory SIZE"),
        (["run", "-N", "2", "--", "x"], "--gang N"),
        (["run", "-v", "/a:/b", "--", "x"], "--cwd DIR"),
        (["submit", "--time", "1h", "x.py"], "--timeout TIME"),
    ],
)
def test_habits_from_elsewhere_are_answered_with_what_it_is_here(alone: Invoke, words: list[str], instead: str) -> None:
    result = alone(*words)
    assert result.exit_code == 2 and instead in result.stderr
    as_json = alone(*words[:1], "--json", *words[1:])
    assert instead in as_json.stdout and json.loads(as_json.stdout)["error"]["code"] == "BadRequest"


def test_what_is_said_of_habits_exists() -> None:
    from actorgrid.cli import other_tools

    known = set(NAMES)
    for said in (*other_tools.COMMANDS.values(), *other_tools.OPTIONS.values()):
        for command in re.findall(r"`actorgrid (\w+)", said):
            assert command in known, said
    assert not other_tools.COMMANDS.keys() & known


def test_the_package_lists_what_is_public() -> None:
    code = "import actorgrid; print(*[name for name in dir(actorgrid) if not name.startswith('_')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import actorgrid

    assert done.stdout.split() == sorted(name for name in actorgrid.__all__ if not name.startswith("_"))
