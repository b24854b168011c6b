"""A command and environment that pass the door can be run; what is larger is named."""

from __future__ import annotations

import subprocess

import pytest

from actorgrid.actors.ledger.exec_limits import check_exec
from actorgrid.errors import CommandTooLarge
from actorgrid.sizes import ARGUMENT_BYTES_MAX, EXEC_BYTES_MAX


def test_the_largest_string_is_the_largest_that_the_system_takes() -> None:
    largest = "x" * (ARGUMENT_BYTES_MAX - 1)
    check_exec(["true", largest], {})
    assert subprocess.run(["true", largest], check=False).returncode == 0
    with pytest.raises(CommandTooLarge, match="argument 1 of the command"):
        check_exec(["true", largest + "x"], {})
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true", largest + "x"], check=False)
    with pytest.raises(CommandTooLarge, match="the environment variable HUGE"):
        check_exec(["true"], {"HUGE": largest})


def test_the_most_that_passes_is_taken_by_the_system() -> None:
    env: dict[str, str] = {}
    with pytest.raises(CommandTooLarge, match=f"at most {EXEC_BYTES_MAX} together") as refused:
        while True:
            check_exec(["true"], {**env, f"V{len(env)}": "ä" * 10_000})
            env[f"V{len(env)}"] = "ä" * 10_000
    assert refused.value.http_status == 400
    assert len(env) > 40
    assert subprocess.run(["true"], env=env, check=False).returncode == 0
