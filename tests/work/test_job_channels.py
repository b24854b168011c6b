"""People in a running job: commands beside its own, its terminal, its ports; over the socket of its shim."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work.job_channels import CHANNELS_MAX, STUCK_S, Channel
from actorgrid.actors.work.messages import FindChannel
from actorgrid.errors import (
    BadRequest,
    JobNotRunning,
    MalformedBody,
    NotATerminal,
    Overloaded,
    PeerGone,
    PeerRefused,
    PortNotOpen,
)
from actorgrid.transports.channel_frames import (
    AskPorts,
    AttachToTerminal,
    ChannelPurpose,
    ConnectToPort,
    ExecCommand,
    TerminalSize,
)
from actorgrid.transports.frames import encode_frame
from actorgrid.transports.kept_stream import Keep
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
    wait_for(lambda: rig.marked(attempt_id) == [], what="what was beside it is gone")
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
    over = come(where, sh("true"))
    over.until_over()
    over.leave()
    with pytest.raises(PeerGone, match="the channel has ended"):
        over.connect()
    with pytest.raises(JobNotRunning):
        found(rig, "b.1")
    many = [come(where) for _ in range(CHANNELS_MAX)]
    with pytest.raises(Overloaded):
        come(where, sh("cat"))
    for client in many:
        client.leave()
    open_gate(tmp_path / "gate")
    assert rig.ended(attempt_id)["state"] == "succeeded"


def test_a_terminal_is_seen_and_typed_into_by_all_who_are_attached(kept_in: Rig, come: Come) -> None:
    rig = kept_in
    line = "echo first; read a; echo got $a; read b; stty size; trap 'echo int; exit 6' INT; echo ready; read c"
    attempt_id = started(rig, "a", [*SH, line], pty=True)
    where = found(rig, attempt_id)
    assert where["terminal"]
    one = come(where, AttachToTerminal(TerminalSize(31, 91)))
    one.until_out(b"first\r\n")
    two = come(where, AttachToTerminal(history_bytes=0))
    two.send("in", b"hello\n")
    for client in (one, two):
        assert b"got hello\r\n" in client.until_out(b"got hello\r\n")
    one.leave()  # which ends nothing
    late = come(where, AttachToTerminal())
    late.send("in", b"\n")
    assert late.until_out(b"ready").startswith(b"first\r\n")
    late.send("in", b"\x03")
    out, _, end = two.until_over()
    assert b"31 91\r\n" in out
    assert b"int\r\n" in out
    assert end["why"] == "job_ended"
    job = rig.ended(attempt_id)
    (attempt,) = job["attempts"]
    told = {name: value for name, value in attempt.items() if value}
    assert (job["state"], attempt["exit_code"]) == ("failed", 6), f"{told}"
    assert rig.output("a.1").startswith("first\r\nhello\r\ngot hello\r\n")


def test_a_client_that_does_not_read_misses_what_is_not_kept_and_holds_nothing_up(
    make_rig: Callable[..., Rig], come: Come, tmp_path: Path
) -> None:
    rig = make_rig(work__max_output_bytes=100_000)
    rig.start_manager()
    line = f"read go; yes 0123456789 | head -c 4000000; echo; touch {tmp_path}/written; read end"
    attempt_id = started(rig, "a", [*SH, line], pty=True)
    where = found(rig, attempt_id)
    slow, quick = come(where, AttachToTerminal()), come(where, AttachToTerminal())
    slow.send("in", b"go\n")
    seen = 0
    while seen < 4_000_000:
        frame = quick.frame()
        assert frame[0] in ("begun", "out", "missed"), frame
        seen += len(frame[1]) if frame[0] == "out" else frame[1] if frame[0] == "missed" else 0
    wait_for((tmp_path / "written").exists, what="all is written, although one does not read")
    got = missed = 0
    while got + missed < 4_000_000:
        match slow.frame():
            case ["out", data]:
                got += len(data)
            case ["missed", count]:
                missed += count
    assert missed > 2_000_000  # of what is beyond the file, the window and the last 256 KiB
    late = come(where, AttachToTerminal())
    kept = b""
    while (frame := late.frame())[0] != "missed":
        kept += frame[1] if frame[0] == "out" else b""
    assert len(kept) == 100_000
    late.send("in", b"\n")
    assert rig.ended(attempt_id)["state"] == "succeeded"


def test_cancelling_ends_a_shell_at_its_terminal_at_once(rig: Rig, come: Come) -> None:
    attempt_id = started(rig, "a", ["sh", "-i"], pty=True, env={"PS1": "ready "})
    client = come(found(rig, attempt_id), AttachToTerminal())
    client.until_out(b"ready ")
    began = time.monotonic()
    assert rig.manager is not None
    rig.manager._attempts.live[attempt_id].stop("cancelled", 30.0)  # an interactive shell ignores SIGTERM
    assert rig.ended(attempt_id)["state"] == "cancelled"
    assert time.monotonic() - began < 20


SERVES = (
    "import socket, sys; s = socket.create_server((sys.argv[1], 0), family=getattr(socket, sys.argv[2])); "
    "print(s.getsockname()[1], flush=True); c, _ = s.accept(); d = b''\n"
    "while (p := c.recv(65536)): d += p\n"
    "c.sendall(d[::-1]); c.close(); s.accept()"
)


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", "AF_INET"), ("", "AF_INET6")])
def test_a_port_of_the_job_is_led_to_and_no_other(kept_in: Rig, come: Come, address: str, family: str) -> None:
    rig = kept_in
    attempt_id = started(rig, "a", [sys.executable, "-c", SERVES, address, family])
    where = found(rig, attempt_id)
    port = int(wait_for(lambda: rig.output(attempt_id), what="it says its port"))
    asked = come(where, AskPorts())
    assert asked.frame() == ["begun", {"ports": [port]}]
    client = come(where, ConnectToPort(port))
    sent = bytes(range(256)) * 4096
    for at in range(0, len(sent), 32_768):
        client.send("in", sent[at : at + 32_768])
    client.send("end")
    assert client.until_over()[0] == sent[::-1]
    with socket.create_server(("127.0.0.1", 0)) as ours:
        other = ours.getsockname()[1]
        with pytest.raises(PortNotOpen) as raised:
            come(where, ConnectToPort(other)).until_over()
    assert raised.value.found == f"another process of its host does; it listens on {port}"


def test_people_come_to_a_function_that_a_worker_serves_and_leave_with_it(rig: Rig, come: Come, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def waits(path: str) -> int:
        with open(path) as file:
            return len(file.read())

    rig.submit_function("a", waits, str(gate), env={"COLOUR": "red"})
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    where = found(rig, attempt_id)
    client = come(where, sh("echo $COLOUR $ACTORGRID_ATTEMPT; cat"))
    assert client.until_out(b"\n") == f"red {attempt_id}\n".encode()
    gate.write_text("on\n")
    assert client.until_over()[2]["why"] == "job_ended"
    assert rig.ended(attempt_id)["state"] == "succeeded"
    with pytest.raises((PeerRefused, OSError)):
        come(where, sh("true"))


def test_whoever_sends_what_is_no_channel_ends_nothing_but_that(rig: Rig, come: Come, tmp_path: Path) -> None:
    attempt_id = started(rig, "a", gated(tmp_path / "gate", "true"))
    where = found(rig, attempt_id)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\0\0\0\1\xc0", b"\0\0\0\0", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(30)
            stranger.connect(where["path"])
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
    long_frame, odd_frame = b"\0\0\0\0\4\xff\xff\xff\xff", b"\0\0\0\0\5\0\0\0\1\xc0"
    for said in (b"\0\0\0\0\0", b"\7" * 50, long_frame, odd_frame, b"\1\0\0\0\x08" + b"\xff" * 8):
        client = come(where)
        client.socket.sendall(said)
        with suppress(ConnectionResetError):
            while client.frame()[0] != "gone":
                pass
    known = come(where, sh("cat"))
    known.send("in", b"here\n")
    known.until_out(b"here\n")
    known.come_back_saying(b"\7" * 50)
    late = come(where, sh("cat"))
    late.send("size", 0, 0)
    with pytest.raises(MalformedBody):
        late.until_over()
    assert come(where, sh("echo well")).until_over()[0] == b"well\n"
    open_gate(tmp_path / "gate")
    assert rig.ended(attempt_id)["state"] == "succeeded"


def test_after_a_long_silence_there_is_time_to_take_a_burst() -> None:
    channel = Channel(Keep("secret", "0" * 32, 0), time.monotonic() - 10 * STUCK_S)
    while (room := channel.room) > 0:
        channel.put(encode_frame(["out", bytes(room)]))
    now = time.monotonic()
    assert not channel.is_stuck(now)
    assert channel.is_stuck(now + STUCK_S + 1.0)
