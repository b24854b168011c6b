"""Work that is asked of one host and done by another: output, payloads, results, sessions."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.errors import ActorGridError, TaskFailed, WorkerLost
from tests.processes import until
from tests.system.agent import write_when_told
from tests.system.cluster_host import Two, ran_on

THERE = {"gpus": 2, "cpus": 0.1}
"""What only the second host has."""


def test_output_is_read_on_any_host_while_it_grows_and_after(two: Two, tmp_path: Path) -> None:
    first, second = two
    line = "echo early; echo odd >&2; " + write_when_told(tmp_path, "job") + "; echo late"
    client = first.client()
    job_id = client.submit_job(command=["sh", "-c", line], **THERE)["job_id"]
    pieces = client.logs(job_id, follow=True)
    assert next(iter(pieces)) == b"early\n"
    (tmp_path / "job.go").touch()
    assert b"".join(pieces) == b"out-job\nlate\n"
    job = client.job(job_id, wait_s=20)
    assert ran_on(job) == second.hosts()[2]["node_id"]
    for host in two:
        assert b"".join(host.client().logs(job_id)) == b"early\nout-job\nlate\n"
        assert b"".join(host.client().logs(job_id, stream="stderr")) == b"odd\nerr-job\n"
    done = client.run(["sh", "-c", "head -c 3000000 /dev/zero"], **THERE)
    assert len(done.stdout) == 3_000_000


def test_standard_input_and_functions_travel_and_results_come_back(two: Two) -> None:
    first, _ = two
    sent = bytes(range(256)) * 8192
    done = subprocess.run(
        [sys.executable, "-m", "actorgrid", "run", "--gpus", "2", "--stdin", "--", "sha256sum"],
        input=sent,
        capture_output=True,
        timeout=60,
        env={**os.environ, "ACTORGRID_DATA_DIR": str(first.data_dir)},
        check=True,
    )
    assert done.stdout.split()[0].decode() == hashlib.sha256(sent).hexdigest()

    def grow(count: int) -> bytes:
        return b"x" * count

    def size(data: bytes, host: str) -> tuple[int, str]:
        return len(data), host

    client = first.client()
    grown = client.submit(grow, 2_000_000, durable=True, **THERE)
    assert len(grown.result(30)) == 2_000_000
    # Its input lies on the second host, and it runs on the first: that alone has an H100.
    measured = client.submit(size, grown, "h100", durable=True, gpus=1, gpu_models=["H100-80GB"], cpus=0.1)
    assert measured.result(30) == (2_000_000, "h100")
    jobs = {job["job_id"]: job for job in client.jobs()}
    assert ran_on(jobs[grown.job_id]) != ran_on(jobs[measured.job_id])


def test_sessions_use_workers_of_every_host_from_any_host(two: Two) -> None:
    first, _ = two

    def devices() -> str:
        import os

        return os.environ["ACTORGRID_DEVICES"]

    def echo(data: bytes) -> bytes:
        return data[::-1]

    def same(kept: bytes, sent: list[bytes], made: dict[str, bytes]) -> tuple[bool, bool]:
        return kept == sent[0], made["made"] == kept[::-1]

    def fail() -> None:
        raise LookupError("no such thing")

    names = {gpu["device_id"]: gpu["model"] for gpu in first.client().gpus()}
    for asked in two:
        with actorgrid.connect(data_dir=asked.data_dir) as client:
            for model in ("H100-80GB", "A100-40GB"):
                where = {"gpus": 0.5, "gpu_models": [model], "cpus": 0.1}
                assert names[client.submit(devices, **where).result(30)] == model.partition("-")[0]
                big = bytes(range(256)) * 16384
                made = client.submit(echo, big, **where)
                assert made.result(30) == big[::-1]
                kept = client.put(big)  # of this host, and its values go to workers of the other one as well
                assert client.submit(same, kept, [big], {"made": made}, **where).result(30) == (True, True)
                assert client.submit(lambda data=big: len(data), **where).result(30) == len(big)
                with pytest.raises(TaskFailed, match="no such thing"):
                    client.submit(fail, **where).result(30)
            many = [bytes([n, 0]) for n in range(200)]
            assert list(client.map(echo, many, gpus=0.5, gpu_models=["A100-40GB"])) == [each[::-1] for each in many]
    until(lambda: first.client().allocations() == [], "all leases are returned")


def test_a_session_has_its_workers_beside_it_while_there_is_room(two: Two) -> None:
    def devices() -> str:
        import os

        return os.environ["ACTORGRID_DEVICES"]

    for node, host in enumerate(two, 1):
        here = host.hosts()[node]["node_id"]
        own = {gpu["device_id"] for gpu in host.client().gpus() if gpu["host"] == here}
        with actorgrid.connect(data_dir=host.data_dir) as client:
            for _ in range(2):
                assert client.submit(devices, gpus=1, cpus=0.1).result(30) in own
        until(lambda: two[0].client().allocations() == [], "the workers are returned")


def test_a_worker_that_dies_on_another_host_costs_no_task(two: Two, tmp_path: Path) -> None:
    first, _ = two

    def once(marker: str) -> str:
        import os
        import signal
        from pathlib import Path

        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "again"

    with actorgrid.connect(data_dir=first.data_dir) as client:
        assert client.submit(once, str(tmp_path / "marker"), retries=2, **THERE).result(30) == "again"


def test_a_stream_comes_from_another_host_waits_for_its_reader_and_is_closed_there(two: Two, tmp_path: Path) -> None:
    first, _ = two

    def letters(folder: str) -> Iterator[bytes]:
        import itertools
        from pathlib import Path

        try:
            for number in itertools.count():
                Path(folder, str(number)).touch()
                yield bytes([number % 256]) * 100_000
        finally:
            Path(folder, "closed").touch()

    def dies(values: int) -> Iterator[int]:
        import os
        import signal

        yield from range(values)
        os.kill(os.getpid(), signal.SIGKILL)

    def asked() -> int:
        return sum(path.name.isdigit() for path in tmp_path.iterdir())

    with actorgrid.connect(data_dir=first.data_dir) as client:
        there = client.options(**THERE)
        with there.stream(letters, str(tmp_path), window=4) as stream:
            until(lambda: asked() == 4, "it runs ahead by its window, and waits")
            assert [next(stream) for _ in range(300)] == [bytes([n % 256]) * 100_000 for n in range(300)]
            assert asked() <= 304
        until((tmp_path / "closed").exists, "the generator is closed on its host")
        assert list(actorgrid.task(**THERE)(lambda: range(50)).stream(client=client)) == list(range(50))
        with pytest.raises(WorkerLost):
            list(there.stream(dies, 3))
    until(lambda: first.client().allocations() == [], "the workers are returned")


def test_every_host_shows_what_all_devices_read(two: Two) -> None:
    for host in two:
        until(
            lambda host=host: (
                [gpu["temperature_celsius"] is not None for gpu in host.cli_json("gpus")["gpus"]]  # type: ignore[misc]
                == [True] * 4
            ),
            "readings of both hosts' devices",
        )


def test_links_survive_the_death_of_their_server(two: Two) -> None:
    first, _ = two
    client = first.client()
    for host in two:
        pid = host.pid_of("links")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        done = until(lambda: _try(client), "another host's job is run and read again")
        assert done == b"still here\n"


def _try(client: Any) -> bytes | None:
    try:
        stdout: bytes = client.run(["echo", "still here"], **THERE).stdout
    except ActorGridError:
        return None
    return stdout


def test_each_host_knows_what_the_devices_of_all_read_together(two: Two) -> None:
    count = len(two[0].cli_json("gpus")["gpus"])
    assert count >= 2
    for host in two:
        found = until(
            lambda host=host: (total := host.cli_json("gpus", "total"))["gpus"] == count and total,  # type: ignore[misc]
            "what the other host told to be heard of",
        )
        assert (found["hosts"], found["hosts_unknown"]) == (2, 0)
        assert found["memory_bytes"] > 0 and found["utilization_percent"] is not None
