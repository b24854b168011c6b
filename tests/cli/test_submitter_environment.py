"""Which variables travel with work, and which never do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorgrid.cli.submitter_environment import BYTES_MAX, submitter_environment
from actorgrid.errors import BodyTooLarge
from actorgrid.models import TaskRequest

from .conftest import Door, Host, Invoke


def test_what_programs_are_told_by_travels() -> None:
    mine = {
        "PATH": "/venv/bin:/bin",
        "VIRTUAL_ENV": "/venv",
        "LR": "0.1",
        "TOKENIZERS_PARALLELISM": "false",
        "KEYS": "a",
    }
    assert submitter_environment(mine, {}).variables == mine


@pytest.mark.parametrize(
    "name",
    [
        *(
            "ACTORGRID_TOKEN",
            "ACTORGRID_DATA_DIR",
            "LD_PRELOAD",
            "LD_AUDIT",
            "PWD",
            "SHLVL",
            "_",
            "SSH_AUTH_SOCK",
            "TMUX",
        ),
        *(
            "CUDA_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "RANK",
            "MASTER_ADDR",
            "PET_NNODES",
            "BASH_FUNC_f%%",
            "a b",
            "1A",
        ),
    ],
)
def test_what_belongs_to_this_shell_or_is_said_by_the_agent_stays(name: str) -> None:
    taken = submitter_environment({name: "x"}, {})
    assert taken.variables == {} and taken.secrets == ()


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "WANDB_API_KEY", "PGPASSWORD", "DB_PASSWORD"),
        *("OPENAI_API_KEY", "GOOGLE_CREDENTIALS", "github_token", "SIGNING_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_a_secret_stays_and_is_named_unless_it_was_asked_for(name: str) -> None:
    assert submitter_environment({name: "s3cret", "A": "1"}, {}) == submitter_environment({name: "other", "A": "1"}, {})
    assert submitter_environment({name: "s3cret", "A": "1"}, {}).secrets == (name,)
    assert submitter_environment({name: "s3cret"}, {name: "s3cret"}).secrets == ()


def test_a_password_in_a_url_and_bytes_that_are_no_text_stay() -> None:
    taken = submitter_environment(
        {"http_proxy": "http://me:pw@proxy:1", "https_proxy": "http://proxy:1", "RAW": "\udcff"}, {}
    )
    assert taken.variables == {"https_proxy": "http://proxy:1"} and taken.secrets == ("http_proxy",)


def test_too_much_is_refused_with_what_is_largest() -> None:
    with pytest.raises(BodyTooLarge) as raised:
        submitter_environment({"BIG": "x" * BYTES_MAX, "SMALL": "y"}, {})
    assert "BIG (" in raised.value.found and "--no-env-from-me" in raised.value.hint
    assert submitter_environment({"FITS": "x" * (BYTES_MAX - 6)}, {}).variables


def test_a_host_that_is_named_by_its_url_gets_it_only_when_asked(
    call: Invoke, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LR", "0.1")
    door.on("POST /api/jobs", {"job_id": "0" * 32, "duplicate": False}, 201)
    assert call("run", "--detach", "--env", "A=1", "--", "true").exit_code == 0
    assert TaskRequest(**door.asked[-1][2]).env == {"A": "1"}
    assert call("run", "--detach", "--env-from-me", "--env", "LR=2", "--", "true").exit_code == 0
    sent = TaskRequest(**door.asked[-1][2]).env
    assert sent["LR"] == "2" and sent["PATH"] == os.environ["PATH"] and "ACTORGRID_TOKEN" not in sent


@pytest.mark.system
@pytest.mark.timeout(120)
def test_on_a_host_that_is_alone_a_job_runs_as_it_would_here(host: Host, tmp_path: Path) -> None:
    venv = tmp_path / "venv/bin"
    venv.mkdir(parents=True)
    (venv / "mytool").write_text("#!/bin/sh\necho $VIRTUAL_ENV $LR ${MY_API_KEY:-none} ${LD_PRELOAD:-none}\n")
    (venv / "mytool").chmod(0o755)
    (venv / "python").symlink_to("/bin/echo")
    mine = {
        "PATH": f"{venv}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "LR": "0.1",
        "MY_API_KEY": "s3cret",
    }
    done = host.call("run", "--", "mytool", variables=mine)
    assert done.stdout.split() == [str(tmp_path / "venv"), "0.1", "none", "none"], done.stderr
    asked = host.call("run", "--env", "MY_API_KEY", "--", "mytool", variables=mine)
    assert asked.stdout.split()[2] == "s3cret"
    without = host.call(
        "run",
        "--no-env-from-me",
        "--",
        "sh",
        "-c",
        "echo ${LR:-none}",
        variables=mine,
    )
    assert without.stdout == "none\n"
    (tmp_path / "job.py").write_text("")
    job_id = host.call("submit", str(tmp_path / "job.py"), variables=mine).stdout.strip()
    assert host.call("logs", "-f", job_id).stdout.strip() == str(tmp_path / "job.py")
