"""What a request costs at the gateway for models, beside other proxies where they are; and what open streams take.

CPU of the process that carries requests, for each request: what a busy machine adds to times it adds little to that.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from actorgrid.actors.model_gateway.gateway import CONNECTIONS_MAX
from actorgrid.actors.model_gateway.process_spec import allow_descriptors, connections_within, descriptors_for
from actorgrid.actors.serving.table import RoutingStrategy
from tests.model_gateway.gateway_process import AgentEnd, GatewayProcess
from tests.model_gateway.running import endpoint, route, table

from .figures import Figure, Skipped, registry
from .gateway_load import WHOLE, PairedLatencies
from .peers import python_with

LOAD = [sys.executable, "-m", "tests.bench.gateway_load"]
SECONDS, CONNECTIONS = 5.0, 32
STREAMS, RATE = 10_000, 1_000
MUST_JSON_US = 1e6 / 15_000
MUST_BYTES = 400 * 2**20
MUST_P50_MS, MUST_P99_MS = 0.2, 2.0
START_S = 60.0


class Asked(NamedTuple):
    cpu_us: float
    answers_s: float
    p50_ms: float
    p99_ms: float


@registry.add("model_gateway")
def model_gateway(runs: int) -> Iterator[Figure]:
    """Whole answers and streams of twenty events, by 32 connections and by one; and streams that are open."""
    with canned_model() as port, _gateway(port) as (process, address):
        worker = process.workers[0]
        for kind in ("json", "stream"):
            found = [_ask(worker, address, CONNECTIONS, kind) for _ in range(runs)]
            must = MUST_JSON_US if kind == "json" else None
            yield Figure(f"CPU of a request, {kind}", "us", [each.cpu_us for each in found], False, must=must)
            yield Figure(f"answers, {kind}, {CONNECTIONS} connections", "1/s", [each.answers_s for each in found], True)
        found = [_ask(worker, address, 1, "json") for _ in range(runs)]
        yield Figure("answered alone", "ms", [each.p50_ms for each in found], False, p99=max(e.p99_ms for e in found))
        direct = [_ask(worker, port, 1, "json") for _ in range(runs)]
        yield Figure("the same without a gateway", "ms", [each.p50_ms for each in direct], False)
        found = [_pace(worker, address) for _ in range(runs)]
        name = f"answered, {RATE} a second"
        yield Figure(name, "ms", [e.p50_ms for e in found], False, p99=max(e.p99_ms for e in found))
        direct = [_pace(worker, port) for _ in range(runs)]
        name += " without a gateway"
        yield Figure(name, "ms", [e.p50_ms for e in direct], False, p99=max(e.p99_ms for e in direct))
    with canned_model() as port, _gateway(port, workers_for(STREAMS)) as (process, address):
        workers = process.workers
        before = sum(each.memory_info().rss for each in workers)
        with open_streams(address, STREAMS) as end:
            taken = sum(each.memory_info().rss for each in workers)
            whole = end()
        note = f"of {len(workers)} workers; {taken - before} bytes more than without; {whole} were whole at the end"
        assert whole == STREAMS, note
        yield Figure(f"memory with {STREAMS} open streams", "B", [taken], False, must=MUST_BYTES, note=note)
    with c_replica() as port, _gateway(port) as (process, address):
        found = [_pairs(address, port) for _ in range(runs)]
        note = f"noise between two of the replica's own {[round(each.noise_p50_ms, 2) for each in found]}"
        name = f"added to a request, {RATE} a second, p50 of pairs"
        yield Figure(name, "ms", [each.added_p50_ms for each in found], False, must=MUST_P50_MS, note=note)
        note = f"noise between two of the replica's own {[round(each.noise_p99_ms, 2) for each in found]}"
        added = [each.gateway_p99_ms - each.direct_p99_ms for each in found]
        yield Figure(f"added to p99, {RATE} a second", "ms", added, False, must=MUST_P99_MS, note=note)
        ratios = [each.gateway_p99_ms / each.direct_p99_ms for each in found]
        yield Figure("p99 of the gateway to the replica's", "", ratios, False)


@registry.add("model_gateway_peers")
def model_gateway_peers(runs: int) -> Iterator[Figure]:
    """Others before the same model: nginx and HAProxy, which look at no model or usage, and LiteLLM, which does."""
    there = {name: shutil.which(name) for name in PROXIES}
    wanted: dict[str, Callable[[int], AbstractContextManager[tuple[psutil.Process, int]]]] = {
        name: partial(PROXIES[name], program) for name, program in there.items() if program is not None
    }
    try:
        litellm = python_with("litellm.proxy.proxy_server", "litellm[proxy]").with_name("litellm")
        wanted["LiteLLM"] = partial(_litellm, str(litellm))
    except Skipped as skipped:
        if not wanted:
            raise
        yield Figure(f"LiteLLM is not here: {skipped}", "", [0.0], False)
    with canned_model() as port:
        for name, proxy in wanted.items():
            with proxy(port) as (process, address):
                for kind in ("json", "stream"):
                    found = [_ask(process, address, CONNECTIONS, kind) for _ in range(runs)]
                    yield Figure(f"{name}: CPU of a request, {kind}", "us", [each.cpu_us for each in found], False)
                    yield Figure(f"{name}: answers, {kind}", "1/s", [each.answers_s for each in found], True)


def _pace(process: psutil.Process, port: int) -> Asked:
    return _measured(process, ["pace", str(port), str(SECONDS), str(RATE)])


def _ask(process: psutil.Process, port: int, connections: int, kind: str) -> Asked:
    return _measured(process, ["ask", str(port), str(SECONDS), str(connections), kind])


def _pairs(port: int, direct: int) -> PairedLatencies:
    load = [*LOAD, "pairs", str(port), str(direct), str(SECONDS), str(RATE)]
    done = subprocess.run(load, capture_output=True, text=True, check=True)
    return PairedLatencies(**json.loads(done.stdout))


def workers_for(streams: int) -> int:
    """How many workers may have so many streams, by the descriptors that a process may have; the kernel shares
    connections out evenly, nearly."""
    allowed = allow_descriptors(descriptors_for(CONNECTIONS_MAX))
    return 1 if allowed >= descriptors_for(streams) else math.ceil(1.1 * streams / connections_within(allowed))


@contextmanager
def open_streams(port: int, count: int) -> Iterator[Callable[[], int]]:
    """So many streams that are open; what ends them all says how many of them were whole."""
    holding = subprocess.Popen(
        [*LOAD, "hold", str(port), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holding:
        assert holding.stdin is not None and holding.stdout is not None

        def end() -> int:
            holding.stdin.write("\n")
            holding.stdin.flush()
            return int(holding.stdout.readline())

        try:
            assert holding.stdout.readline() == "open\n", "not all of them could be opened"
            yield end
        finally:
            holding.kill()


def _measured(process: psutil.Process, load: list[str]) -> Asked:
    before = _cpu_s(process)
    done = subprocess.run([*LOAD, *load], capture_output=True, text=True, check=True)
    count, p50_ms, p99_ms = (float(each) for each in done.stdout.split())
    return Asked((_cpu_s(process) - before) * 1e6 / count, count / SECONDS, p50_ms, p99_ms)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait_for(port: int, seconds: float = START_S) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


@contextmanager
def _serving(port: int, command: list[str], start_s: float = START_S, **how: Any) -> Iterator[psutil.Process]:
    """*command* while it serves at *port*; *how*: further arguments of Popen."""
    process = subprocess.Popen(command, **how)
    try:
        _wait_for(port, start_s)
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


@contextmanager
def canned_model() -> Iterator[int]:
    port = _free_port()
    with _serving(port, [*LOAD, "serve", str(port)]):
        yield port


@contextmanager
def c_replica() -> Iterator[int]:
    """The canned model's whole answer, from a program in C; from the canned model where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        with canned_model() as port:
            yield port
        return
    with tempfile.TemporaryDirectory() as folder:
        program, answer = Path(folder, "replica"), Path(folder, "answer")
        answer.write_bytes(WHOLE)
        source = Path(__file__).with_name("canned_replica.c")
        subprocess.run([compiler, "-O2", "-D_GNU_SOURCE", "-o", str(program), str(source)], check=True)
        port = _free_port()
        with _serving(port, [str(program), str(port), str(answer)]):
            yield port


@contextmanager
def _gateway(model: int, workers: int = 1) -> Iterator[tuple[GatewayProcess, int]]:
    with tempfile.TemporaryDirectory() as folder:
        process = GatewayProcess(Path(folder) / "gw", workers=workers)
        agent = AgentEnd(process.folder)
        try:
            agent.use(table(replace(route(endpoint(model)), strategy=RoutingStrategy.PREFIX_COST)))
            while agent.report().table_sequence != 1:
                pass
            yield process, int(agent.hello.client_address.rpartition(":")[2])
        finally:
            agent.close()
            process.stop()


@contextmanager
def _nginx(program: str, model: int) -> Iterator[tuple[psutil.Process, int]]:
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
        Path(folder, "nginx.conf").write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;\n"
            "events { worker_connections 1024; }\n"
            f"http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {folder}/body; {temporary}\n"
            f"upstream model {{ server 127.0.0.1:{model}; keepalive 64; keepalive_requests 1000000000; }}\n"
            f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://model; proxy_http_version 1.1;"
            ' proxy_set_header Connection ""; proxy_buffering off; } } }\n',
            encoding="ascii",
        )
        with _serving(port, [program, "-c", f"{folder}/nginx.conf", "-p", folder]) as process:
            yield process, port


@contextmanager
def _haproxy(program: str, model: int) -> Iterator[tuple[psutil.Process, int]]:
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "haproxy.cfg").write_text(
            "global\n nbthread 1\n maxconn 4096\n"
            "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 2s\n"
            f"listen model\n bind 127.0.0.1:{port}\n http-reuse always\n server one 127.0.0.1:{model}\n",
            encoding="ascii",
        )
        with _serving(port, [program, "-db", "-q", "-f", f"{folder}/haproxy.cfg"]) as process:
            yield process, port


@contextmanager
def _litellm(program: str, model: int) -> Iterator[tuple[psutil.Process, int]]:
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.yaml").write_text(
            "model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n      api_key: k\n"
            f"      api_base: http://127.0.0.1:{model}/v1\n",
            encoding="ascii",
        )
        command = [program, "--config", f"{folder}/config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        with _serving(
            port,
            [*command, "--telemetry", "False"],
            start_s=3 * START_S,
            env={**os.environ, "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            yield process, port


PROXIES = {"nginx": _nginx, "haproxy": _haproxy}
