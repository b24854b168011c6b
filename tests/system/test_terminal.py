"""Names that hold escape sequences are shown, and command no terminal; JSON stays faithful, and so does output."""

from __future__ import annotations

import json

import pytest

from actorgrid.cli.printing import visible
from actorgrid.cli.show import table
from actorgrid.cli.terminal import visible_in
from tests.system.agent import Agent

EVIL = "\x1b]52;c;ZXZpbA==\x07\x9b31m\x7f‮gpj"


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2028, 0x2066, 0xD800])
def test_what_commands_a_terminal_is_written_out(code: int) -> None:
    shown = visible(f"a{chr(code)}b", cell=True)
    assert shown == f"a{ascii(chr(code))[1:-1]}b"
    assert shown.isprintable()


def test_text_stays_as_it_is() -> None:
    for text in ("plain", "größe 東京 🙂", "two\nlines\tand a tab"):
        assert visible(text) == text
    assert visible_in({EVIL: [EVIL, 1, None]}) == {visible(EVIL): [visible(EVIL), 1, None]}


def test_a_cell_stays_in_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    table(["NAME"], [["one\nforged row"], [EVIL]], "none")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


def test_names_of_jobs_and_keys_reach_no_terminal(shared_agent: Agent) -> None:
    client = shared_agent.client()
    job_id = client.submit_job(command=["printf", EVIL], name=EVIL, cpus=0.1)["job_id"]
    client.job(job_id, wait_s=30)
    client.state.put(f"k{EVIL}", EVIL)
    for command in (
        ["ps", "--all"],
        ["why", job_id],
        ["state", "list"],
        ["why", f"no{EVIL}"],
        ["state", "get", f"k{EVIL}"],
    ):
        done = shared_agent.cli(*command, check=False)
        for character in done.stdout + done.stderr:
            assert character in "\n\t" or character.isprintable(), (command, done.stdout, done.stderr)
    shown = shared_agent.cli("state", "list", "--json").stdout
    assert shown.isascii()
    assert EVIL in [entry["value"] for entry in json.loads(shown)["entries"]]
    assert b"".join(client.logs(job_id)).decode() == EVIL
