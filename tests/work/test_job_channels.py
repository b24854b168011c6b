"""People in a running job: commands beside its own, its terminal, its ports; over the socket of its shim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work.job_channels import CHANNELS_MAX
from actorgrid.actors.work.messages import FindChannel
from actorgrid.errors import (
    BadRequest,
    JobNotRunning,
    MalformedBody,
    NotATerminal,
    Overloaded,
    PeerRefused,
)
from actorgrid.transports.channel_frames import (
    AttachToTerminal,
    ChannelPurpose,
    ExecCommand,
    TerminalSize,
)
from tests.work.channel_client import ChannelClient
from tests.work.rig import Rig, gated, open_gate, wait_for

SH = ("sh", "-c")


def found(rig: Rig, attempt_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = rig.node.request("worker_manager", FindChannel(attempt_id))
    return answer


def started(rig: Rig, job_id: str, command: list[str], **fields: Any) -> str:
    rig.submit(job_id, command=command, **fields)
    attempt_id = rig.grant(job_id)
    rig.running(attempt_id)
    return attempt_id


def sh(text: str, **options: Any) -> ExecCommand:
    return ExecCommand((*SH, text), **options)


@pytest.fixture
def come() -> Iterator[Callable[..., ChannelClient]]:
    """Makes clients, and closes them."""
    made: list[ChannelClient] = []

    def make(where: dict[str, Any], purpose: ChannelPurpose | None = None) -> ChannelClient:
        made.append(ChannelClient(where, purpose))
        return made[-1]

    yield make
    for client in made:
        client.drop()


Come = Callable[..., ChannelClient]


@pytest.fixture(params=["auto", "pid_namespace", "none"])
def kept_in(request: pytest.FixtureRequest, make_rig: Callable[..., Rig]) -> Rig:
    rig = make_rig(work__containment=request.param)
    rig.start_manager()
    return rig


def test_a_command_runs_inside_a_job_as_the_job_does_and_ends_with_it(kept_in: Rig, tmp_path: Path, come: Come) -> None:
    rig = kept_in
    attempt_id = started(rig, "a", gated(tmp_path / "gate", "true"), env={"COLOUR": "red"}, cwd=str(tmp_path))
    where = found(rig, attempt_id)
    client = come(where, sh("echo $COLOUR $MORE; pwd; cat; echo sad >&2; exit 7", env=(("MORE", "hue"),)))
    client.send("in", b"typed\n")
    client.send("end")
    out, err, end = client.until_over()
    assert out.decode() == f"red hue\n{tmp_path}\ntyped\n"
    assert err == b"sad\n"
    assert end == {"exit_code": 7, "signal": None, "why": ""}
    client.leave()
    assert come(where, sh("kill -USR1 $$")).until_over()[2]["signal"] == 10
    # It sees the job, is kept where the job is, and is gone when that is.
    beside = come(where, sh("trap '' TERM HUP; echo here; while :; do sleep 1; done"))
    beside.until_out(b"here\n")
    mine = rig.marked(attempt_id)
    assert len(mine) >= 2
    seen = come(where, sh(f"ps -eo args | grep -c 'read line < {tmp_path}/gat[e]'")).until_over()[0]
    assert int(seen) >= 1
    open_gate(tmp_path / "gate")
    assert rig.ended(attempt_id)["state"] == "succeeded"
    assert rig.marked(attempt_id) == []
    with pytest.raises(JobNotRunning):
        found(rig, attempt_id)


def test_a_command_with_a_terminal_has_its_size_and_its_keys(kept_in: Rig, tmp_path: Path, come: Come) -> None:
    rig = kept_in
    where = found(rig, started(rig, "a", gated(tmp_path / "gate", "true")))
    client = come(
        where,
        sh(
            "tty -s && stty size; trap 'stty size; exit 5' WINCH; trap 'echo int' INT;"
            " echo ready; while :; do sleep 0.02; done",
            size=TerminalSize(33, 99),
        ),
    )
    assert client.until_out(b"ready").startswith(b"33 99\r\n")
    client.send("in", b"\x03")
    client.until_out(b"int")
    client.send("size", 44, 111)
    out, _, end = client.until_over()
    assert out.endswith(b"44 111\r\n")
    assert end["exit_code"] == 5
    open_gate(tmp_path / "gate")


def test_a_broken_connection_loses_nothing_and_repeats_nothing(rig: Rig, tmp_path: Path, come: Come) -> None:
    where = found(rig, started(rig, "a", gated(tmp_path / "gate", "true")))
    client = come(where, sh("while read line; do echo got $line; done; exit 3"))
    client.send("in", b"one\n")
    client.until_out(b"got one\n")
    client.drop()
    client.connect()
    client.send("in", b"two\n")
    client.send("end")
    out, _, end = client.until_over()
    assert (out, end["exit_code"]) == (b"got two\n", 3)
    # Also of what the command wrote, and how it ended, while nobody was there.
    big = come(where, sh("read go; head -c 3000000 /dev/zero; echo done; exit 4"))
    big.send("in", b"go\n")
    big.drop()
    big.connect()
    out, _, end = big.until_over()
    assert (len(out), out[-5:], end["exit_code"]) == (3_000_005, b"done\n", 4)
    open_gate(tmp_path / "gate")


def test_a_client_that_leaves_hangs_up_on_its_command(rig: Rig, tmp_path: Path, come: Come) -> None:
    where = found(rig, started(rig, "a", gated(tmp_path / "gate", "true")))
    client = come(where, sh(f"trap 'echo bye > {tmp_path}/said; exit' HUP; echo up; while :; do sleep 0.02; done"))
    client.until_out(b"up")
    client.leave()
    wait_for(lambda: (tmp_path / "said").exists(), 8, what="SIGHUP")
    open_gate(tmp_path / "gate")


def test_what_cannot_be_done_is_said(rig: Rig, tmp_path: Path, come: Come) -> None:
    attempt_id = started(rig, "a", gated(tmp_path / "gate", "true"))
    where = found(rig, attempt_id)
    with pytest.raises(BadRequest, match="cannot run no-such-program"):
        come(where, ExecCommand(("no-such-program",))).until_over()
    with pytest.raises(NotATerminal, match="no terminal"):
        come(where, AttachToTerminal()).until_over()
    with pytest.raises(PeerRefused):
        come({**where, "secret": "0" * 32})
    odd = come(where)
    odd.send("bogus", 1)
    with pytest.raises(MalformedBody):
        odd.until_over()
    with pytest.raises(JobNotRunning):
        found(rig, "b.1")
    many = [come(where) for _ in range(CHANNELS_MAX)]
    with pytest.raises(Overloaded):
        come(where, sh("cat"))
    for client in many:
        client.leave()
    open_gate(tmp_path / "gate")
    assert rig.ended(attempt_id)["state"] == "succeeded"
