"""Whether a replica answers: what its answers mean, and how it is asked."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.service_records import ServingRecord
from actorgrid.actors.serving.probing import ProbeAnswer, probe, probe_own
from actorgrid.actors.serving.replica_watch import LIVE_EVERY_S, MISSES_MAX, ProbeKind, ReplicaWatch
from actorgrid.actors.work.port_owner import PortOwner
from actorgrid.actors.work.service_ports import COUNT, FIRST, free_port, give_port, give_rank, port_of
from actorgrid.errors import BadRequest
from actorgrid.service_presets import preset_command
from tests.processes import until

SERVER = Path(__file__).parent / "small_server.py"


def serving(**more: Any) -> ServingRecord:
    usual = {"protocol": "openai", "model": "", "ready_path": "", "ready_body": "", "live_path": "/v1/models"}
    return {**usual, "start_timeout_s": 60.0, "preset": "", **more}  # type: ignore[return-value,typeddict-item]


def test_it_is_ready_after_a_real_answer_and_then_asked_for_signs_of_life() -> None:
    watch = ReplicaWatch(serving(), 0.0, "starting", 0.0)
    assert watch.due(0.0) == (ProbeKind.ANSWER, 60.0)
    assert watch.due(0.0) is None, "it is being asked"
    watch.answered(0.1, "port 20000: refused")
    assert watch.state == "starting" and watch.due(0.2) is None
    assert watch.due(1.0) is not None
    watch.answered(1.5, "", "small")
    assert (watch.state, watch.model) == ("ready", "small")
    assert watch.due(1.6) is None
    asked = watch.due(1.5 + LIVE_EVERY_S)
    assert asked is not None and asked[0] is ProbeKind.LIFE


def test_three_silences_make_it_unwell_and_only_a_real_answer_well_again() -> None:
    watch, now = ReplicaWatch(serving(), 0.0, "ready", 0.0), 0.0
    for _ in range(MISSES_MAX):
        assert watch.state == "ready"
        now += 10
        asked = watch.due(now)
        assert asked is not None and asked[0] is ProbeKind.LIFE
        watch.answered(now, "silent")
    assert (watch.state, watch.reason) == ("unhealthy", "silent")
    asked = watch.due(now + 10)
    assert asked is not None and asked[0] is ProbeKind.ANSWER
    watch.answered(now + 11, "")
    assert watch.state == "ready"


def test_one_that_does_not_answer_in_its_time_never_will() -> None:
    watch = ReplicaWatch(serving(start_timeout_s=5.0), 0.0, "starting", 0.0)
    assert watch.due(1.0) == (ProbeKind.ANSWER, 4.0)
    watch.answered(5.1, "port 20000: refused")
    assert watch.state == "unhealthy" and "no answer 5 s after its start: port 20000" in watch.reason
    assert watch.due(9.0) is None and watch.state == "unhealthy" and not watch.served


# -- asking a real server


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., int]]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(*more: str) -> int:
        port = free_port()
        process = subprocess.Popen([sys.executable, str(SERVER), str(port), *more], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline().startswith(b"serving")
        process.stdout.close()
        until(lambda: listens(port), "it listens", 30)
        return port

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_a_real_completion_of_the_model_that_it_lists(start: Callable[..., int]) -> None:
    port = start()
    assert probe(port, serving(), ProbeKind.ANSWER, 10.0) == ProbeAnswer("", "small")
    assert probe(port, serving(model="mine"), ProbeKind.ANSWER, 10.0) == ProbeAnswer("", "mine")
    assert probe(port, serving(), ProbeKind.LIFE, 10.0).reason == ""
    assert probe(port, serving(ready_path="/up"), ProbeKind.ANSWER, 10.0).reason == ""
    assert probe(port, serving(ready_path="/x", ready_body="{}"), ProbeKind.ANSWER, 10.0).reason == ""
    # Its port is open, and nobody answers.
    assert probe(port, serving(ready_path="/wedge", ready_body="{}"), ProbeKind.ANSWER, 10.0).reason == ""
    assert "timed out" in probe(port, serving(), ProbeKind.LIFE, 0.5).reason


def test_an_open_port_is_not_an_answer(start: Callable[..., int]) -> None:
    failing, loading = start("--fail"), start("--start-s", "600")
    assert "answered 500: " in probe(failing, serving(), ProbeKind.ANSWER, 10.0).reason
    assert "/v1/models answered 503" in probe(loading, serving(), ProbeKind.ANSWER, 10.0).reason
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert "refused" in probe(nobody.getsockname()[1], serving(), ProbeKind.ANSWER, 1.0).reason


def test_bytes_that_are_no_http_are_a_reason_and_no_crash() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def answer() -> None:
            for reply in (b"\xff\xfe nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"):
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        assert probe(port, serving(), ProbeKind.LIFE, 5.0).reason
        assert "lists no model" in probe(port, serving(), ProbeKind.ANSWER, 5.0).reason
        thread.join(5)


# Holds an attempt as its shim does, and has a child that listens.
SHIM = """
import fcntl, subprocess, sys
path, port = sys.argv[1:]
held = open(path + "/lock", "w")
fcntl.lockf(held, fcntl.LOCK_EX)
listen = "import socket; s = socket.create_server(('127.0.0.1', %s)); print('on', flush=True); input()" % port
child = subprocess.Popen([sys.executable, "-c", listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print("on", flush=True)
input()
child.communicate(b"\\n")
print("off", flush=True)
input()
"""


def test_a_stranger_on_the_port_of_a_replica_is_asked_nothing(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "chat-1.1").mkdir()
    words = [sys.executable, "-c", SHIM, str(tmp_path / "chat-1.1"), str(port)]
    owner = PortOwner(tmp_path, "chat-1.1", port)
    assert owner.stranger() == "", "nobody listens there yet"
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shim:
        assert shim.stdin is not None and shim.stdout is not None
        assert shim.stdout.readline() == b"on\n"
        assert owner.stranger() == "" and owner.stranger() == ""
        shim.stdin.write(b"\n")
        shim.stdin.flush()
        assert shim.stdout.readline() == b"off\n"
        with socket.create_server(("127.0.0.1", port)) as stranger:
            stranger.settimeout(0)
            answer = probe_own(owner, port, serving(), ProbeKind.ANSWER, 5.0)
            assert answer.is_stranger and f"port {port}: a process that is not of this replica" in answer.reason
            with pytest.raises(BlockingIOError):
                stranger.accept()
        with socket.create_server(("0.0.0.0", port)):
            assert owner.stranger()
        with socket.create_server(("::ffff:127.0.0.1", port), family=socket.AF_INET6, dualstack_ipv6=True):
            assert owner.stranger(), "an address of IPv4, written as one of IPv6"
        shim.stdin.write(b"\n")


def test_a_replica_whose_port_a_stranger_has_serves_no_more_at_once() -> None:
    watch = ReplicaWatch(serving(), 0.0, "starting", 0.0)
    assert watch.due(0.0) is not None
    watch.answered(0.1, "a stranger", is_stranger=True)
    assert watch.state == "starting"
    assert watch.due(1.0) is not None
    watch.answered(1.1, "")
    assert watch.state == "ready" and watch.due(7.0) is not None
    watch.answered(7.1, "a stranger", is_stranger=True)
    assert watch.state == "unhealthy" and watch.reason == "a stranger"


# -- ports and presets


def test_a_port_is_given_to_command_and_environment_and_one_that_is_taken_passed_over() -> None:
    spec: Any = {"id": "chat-1.1", "command": ["serve", "--port={port}", "{port}"], "env": {"A": "b"}}
    give_port(spec)
    port = port_of(spec)
    assert FIRST <= port < FIRST + COUNT
    assert spec["command"] == ["serve", f"--port={port}", str(port)] and spec["env"]["PORT"] == str(port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert port not in {free_port() for _ in range(50)}
    assert len({free_port() for _ in range(50)}) > 25, "which it will be can be told beforehand"
    assert port_of(None) == 0 == port_of({"env": {"PORT": "x"}})  # type: ignore[typeddict-item]


def test_presets_listen_on_loopback_and_take_their_share_of_a_gpu() -> None:
    for preset in ("vllm", "sglang", "llama.cpp"):
        words = preset_command(preset, "org/model", 0.5, ["--more"])
        assert words[-1] == "--more" and "{port}" in words and words[words.index("--host") + 1] == "127.0.0.1"
    assert "--gpu-memory-utilization" in preset_command("vllm", "m", 0.5, ())
    assert preset_command("vllm", "m", 4, ())[-2:] == ["--tensor-parallel-size", "4"]
    assert "--enable-metrics" in preset_command("sglang", "m", 1, ())
    assert preset_command("llama.cpp", "/m/x.gguf", 0, ())[1:3] == ["-m", "/m/x.gguf"]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_member_of_a_gang_is_told_its_rank_and_where_the_first_is_met(rank: int) -> None:
    ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    vllm: Any = {"command": preset_command("vllm", "m", 8, ["--more"], gang=2), "env": {}}
    give_port(vllm)
    give_rank(vllm, ranks)
    words = vllm["command"]
    said = ["env", f"RANK={rank}", *words[:3], "sh", "echo", *words[5:]]  # in place of the server
    told = subprocess.run(said, capture_output=True, text=True, check=True).stdout.split()
    for option, value in {"--node-rank": str(rank), "--master-addr": "10.0.0.1", "--master-port": "29500"}.items():
        assert told[told.index(option) + 1] == value
    sizes = [told[told.index(f"--{word}") + 1] for word in ("nnodes", "tensor-parallel-size", "pipeline-parallel-size")]
    assert sizes == ["2", "8", "2"] and ("--headless" in told) == (rank > 0)
    sglang: Any = {"command": preset_command("sglang", "m", 8, (), gang=2), "env": {}}
    give_rank(sglang, ranks)
    words = sglang["command"]
    assert words[words.index("--dist-init-addr") + 1] == "10.0.0.1:29500" and words[words.index("--tp") + 1] == "16"
    with pytest.raises(BadRequest, match="llama"):
        preset_command("llama.cpp", "m", 1, (), gang=2)
