"""What work costs: `python -m tests.work.bench` prints one JSON object. Best of several rounds, and the median.

The client is the smallest there can be (one process, pre-pickled arguments), so the figures are the worker's.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cloudpickle

from actorgrid.transports.task_frames import Result, encode_function, encode_task, fn_id_of
from tests.work.rig import RawClient, Rig


def noop() -> None:
    return None


noop.__module__ = "__main__"
CODE = cloudpickle.dumps(noop)
FN_ID = fn_id_of(CODE)
ARGS = pickle.dumps(((), {}))


def pipelined(clients: list[RawClient], count: int, window: int = 256) -> float:
    """Tasks per second over all clients, *window* in flight on each."""
    sent, done = [0] * len(clients), [0] * len(clients)
    by_fd = {client.socket.fileno(): index for index, client in enumerate(clients)}
    share = count // len(clients)
    started = time.perf_counter()

    def fill(index: int) -> None:
        room = min(window - (sent[index] - done[index]), share - sent[index])
        if room >= window // 4 or (room > 0 and sent[index] == done[index]):
            data = b"".join(encode_task(sent[index] + number, FN_ID, ARGS) for number in range(room))
            sent[index] += room
            clients[index].socket.sendall(data)

    for index in range(len(clients)):
        fill(index)
    while sum(done) < share * len(clients):
        ready, _, _ = select.select(list(by_fd), [], [])
        for fd in ready:
            index = by_fd[fd]
            client = clients[index]
            frames = client._decoder.feed(client.socket.recv(1 << 18))
            assert all(frame[2] == 0 for frame in frames), frames[:1]
            done[index] += len(frames)
            fill(index)
    return share * len(clients) / (time.perf_counter() - started)


def round_trips(client: RawClient, count: int) -> list[float]:
    times = []
    for number in range(count):
        started = time.perf_counter()
        client.socket.sendall(encode_task(number, FN_ID, ARGS))
        frame = client.frame()
        times.append(time.perf_counter() - started)
        assert isinstance(frame, Result)
        assert frame.status == 0
    return sorted(times)


def pss_kib(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return {"pss": fields["Pss"], "private": fields["Private_Dirty"] + fields["Private_Clean"]}


def main() -> None:
    figures: dict[str, Any] = {"python": sys.version.split()[0], "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder) / "data", work__pools__general__warm=0)
        started = time.perf_counter()
        rig.start_manager()
        grants, ready = [], []
        for number in range(12):
            before = time.perf_counter()
            grants.append(rig.lease(f"L{number}"))
            ready.append(time.perf_counter() - before)
            if number == 0:
                figures["cold_manager_to_first_grant_ms"] = round(1e3 * (time.perf_counter() - started), 1)
        figures["lease_fork_to_ready_ms"] = {
            "p50": round(1e3 * statistics.median(ready[1:]), 2),
            "max": round(1e3 * max(ready[1:]), 2),
        }
        clients = [RawClient(grant) for grant in grants[:2]]
        pids = [client.welcome().pid for client in clients]
        for client in clients:
            client.socket.sendall(encode_function(FN_ID, CODE))
        for workers in (1, 2):
            rates = [pipelined(clients[:workers], 20_000) for _ in range(5)]
            figures[f"noop_tasks_per_s_{workers}_workers"] = {
                "best": round(max(rates)),
                "median": round(statistics.median(rates)),
            }
        times = round_trips(clients[0], 3000)
        figures["round_trip_us"] = {
            "p50": round(1e6 * times[len(times) // 2], 1),
            "p99": round(1e6 * times[int(len(times) * 0.99)], 1),
        }
        listed = rig.manager._leases.workers() if rig.manager else []
        shims = [rig.paths.workers_dir / worker.worker_id for worker in listed]
        from actorgrid.actors.work.attempt_dir import AttemptDir

        shim_pids = [AttemptDir(path.parent, path.name).shim_pid() or 0 for path in shims]
        figures["shim_kib"] = pss_kib(shim_pids[-1])
        figures["worker_used_kib"] = pss_kib(pids[0])
        zygote = rig.manager.status()["zygote_pid"] if rig.manager else 0
        figures["zygote_kib"] = pss_kib(zygote)
        for client in clients:
            client.socket.close()
        before = time.perf_counter()
        for number in range(20):
            rig.run(f"j{number}", command=["true"])
        figures["command_job_ms"] = round(1e3 * (time.perf_counter() - before) / 20, 2)
        rig.close()
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
