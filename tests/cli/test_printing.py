"""What the command line prints of local files, of what was typed and of paths commands no terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from actorgrid.cli.printing import say, say_json, visible

from .conftest import Invoke

EVIL = "a\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\x7f\u202egpj"
CLI = Path(sys.modules["actorgrid.cli.printing"].__file__ or "").parent


def safe(text: str) -> bool:
    return all(character in "\n\t" or character.isprintable() for character in text)


def test_our_own_styles_are_all_that_stays(capsys: pytest.CaptureFixture[str]) -> None:
    ours = click.style("problem", fg="red", bold=True)
    say(f"{ours}: {EVIL}", color=True)
    say(f"{EVIL}\x1b[8mhidden\x1b[10;1H", color=True, err=True)
    printed = capsys.readouterr()
    assert printed.out == f"{ours}: {visible(EVIL)}\n"
    assert printed.err == visible(f"{EVIL}\x1b[8mhidden\x1b[10;1H") + "\n"
    say("größe\n東京\t🙂")
    assert capsys.readouterr().out == "größe\n東京\t🙂\n"


def test_json_is_faithful_and_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({EVIL: EVIL})
    printed = capsys.readouterr().out
    assert printed.isascii() and safe(printed)
    assert json.loads(printed) == {EVIL: EVIL}


def test_usage_errors_quote_what_was_given_safely(alone: Invoke) -> None:
    for arguments in (["ps", f"--{EVIL}"], ["run", "--gpus", EVIL, "true"], ["config", "get", EVIL], ["ps", EVIL]):
        result = alone(*arguments)
        assert result.exit_code == 2
        assert "\\x1b" in result.stderr and safe(result.stderr), result.stderr


def test_settings_and_findings_of_files_are_shown_safely(alone: Invoke, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(f"cluster:\n  host_name: {json.dumps('x' + EVIL)}\n")
    for arguments in (["config", "get", "cluster.host_name"], ["config", "list"], ["doctor"]):
        result = alone(*arguments, "--config", str(tmp_path))
        assert "\\x1b" in result.stdout + result.stderr, arguments
        assert safe(result.stdout + result.stderr), (arguments, result.stdout, result.stderr)


def test_a_command_that_is_not_there_is_named_safely(tmp_path: Path) -> None:
    from actorgrid.cli.lock import _BOOTSTRAP

    arguments = [sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), f"/nonexistent/{EVIL}"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 127 and "\\x1b" in done.stderr and safe(done.stderr)


def test_nothing_is_printed_past_it() -> None:
    past = re.compile(r"click\.(echo|secho|echo_via_pager)\(|(?<![\w.])print\(")
    found = {
        f"{path.name}: {line.strip()}"
        for path in sorted(CLI.glob("*.py"))
        if path.name != "printing.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if past.search(line) and "actorgrid: {name}: {error.strerror}" not in line
    }
    assert found == set()
