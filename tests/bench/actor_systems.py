"""Each actor system that is measured: how it is run, and what must be known to read its figures."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from .actor_work import Measured, Work
from .figures import Skipped
from .peers import python_with

HERE = Path(__file__).parent
RUN_S = 120.0
SLOW_S = 400.0  # longer than the sum of the limits inside, so that its own shutdown comes first
STOP_S = 20.0


def actorgrid(work: Work) -> Measured:
    """A host with a tree of our actors."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "tests.bench.actor_pair", f"{folder}/host", json.dumps(asdict(work))]
        result = Path(folder) / "host" / "result.json"
        with _process(command, stderr=said) as process:
            until = time.monotonic() + RUN_S
            while not result.exists() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            if not result.exists():
                said.seek(0)
                raise Skipped(f"our actors gave nothing: {said.read().decode(errors='replace')[-500:]}")
            found: Measured = json.loads(result.read_text())
        return found


def thespian(work: Work) -> Measured:
    """Thespian's own TCP base, with the Thespian that this project uses."""
    return run_program([sys.executable, str(HERE / "peer_thespian.py"), json.dumps(asdict(work))], SLOW_S)


def xoscar(work: Work) -> Measured:
    """xoscar, two processes."""
    return run_program([str(python_with("xoscar")), str(HERE / "peer_xoscar.py"), json.dumps(asdict(work))], RUN_S)


def pykka(work: Work) -> Measured:
    """Pykka, one process."""
    return run_program([str(python_with("pykka")), str(HERE / "peer_pykka.py"), json.dumps(asdict(work))], RUN_S)


def beam(work: Work) -> Measured:
    """Processes of one BEAM."""
    sizes = [work.calls, work.pipelined, work.casts, work.mb1, work.mb64, work.timers, work.deaths, work.actors]
    with beam_code() as (erl, folder):
        return run_program([erl, "-noshell", "-pa", folder, "-run", "peer_beam", "inside", *map(str, sizes)], RUN_S)


def beam_nodes(work: Work) -> Measured:
    """Two BEAM nodes on this machine, and a name server of their own, all on loopback."""
    sizes = [work.calls, work.pipelined, work.casts, work.mb1, work.mb64]
    with beam_code() as (erl, folder), tempfile.TemporaryFile() as said:
        where = 'io:format("~s/erts-~s/bin/epmd", [code:root_dir(), erlang:system_info(version)]), halt(0).'
        asked = subprocess.run(
            [erl, "-noshell", "-eval", where], capture_output=True, text=True, check=False, timeout=RUN_S
        )
        epmd = asked.stdout.strip()
        if not Path(epmd).exists():
            raise Skipped(f"BEAM has no epmd here: {asked.stdout[-200:]}{asked.stderr[-200:]}")
        port = str(_free_port())
        environment = {**os.environ, "ERL_EPMD_PORT": port, "ERL_EPMD_ADDRESS": "127.0.0.1"}
        cookie = secrets.token_hex(16)

        def node(name: str, *arguments: str) -> list[str]:
            loopback = ["-kernel", "inet_dist_use_interface", "{127,0,0,1}"]
            start = [erl, "-noshell", "-name", f"{name}@127.0.0.1", "-setcookie", cookie, "-start_epmd", "false"]
            return [*start, *loopback, "-pa", folder, "-run", "peer_beam", *arguments]

        with (
            _process([epmd, "-port", port, "-address", "127.0.0.1"], env=environment, stderr=said),
            _process(node("b", "serve"), env=environment, stdout=subprocess.PIPE, stderr=said) as other,
        ):
            if other.stdout is None or not other.stdout.readline().startswith(b"ready"):
                said.seek(0)
                raise Skipped(f"the other BEAM node did not start: {said.read().decode(errors='replace')[-300:]}")
            return run_program(node("a", "across", "b@127.0.0.1", *map(str, sizes)), RUN_S, environment)


@dataclass(frozen=True, slots=True)
class System:
    """One system: what it is called, its one run, and what to say beside its figures."""

    title: str
    measure: Callable[[Work], Measured]
    note: str


SYSTEMS = (
    System("actorgrid", actorgrid, "a process each"),
    System("Thespian {version} TCP", thespian, "a process each; a fifth of the small messages"),
    System("xoscar {version}", xoscar, "two processes, many actors in each"),
    System("Pykka {version}", pykka, "threads of one process"),
    System("BEAM {version}", beam, "one process; lightweight, large messages by reference"),
    System("BEAM {version} nodes", beam_nodes, "two processes; lightweight; the death is the whole node's"),
)


@contextmanager
def beam_code(source: str = "peer_beam.erl") -> Iterator[tuple[str, str]]:
    """Where ``erl`` is, and a folder with the compiled program."""
    erl = shutil.which("erl")
    if erl is None:
        raise Skipped("no `erl` on PATH")
    with tempfile.TemporaryDirectory() as folder:
        options = f'[{{outdir, "{folder}"}}, report]'
        program = f'{{ok, _}} = compile:file("{HERE / source}", {options}), halt(0).'
        compiled = subprocess.run(
            [erl, "-noshell", "-eval", program], capture_output=True, text=True, check=False, timeout=RUN_S
        )
        if compiled.returncode:
            raise Skipped(f"{source} does not compile here: {(compiled.stdout + compiled.stderr)[-300:]}")
        yield erl, folder


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def run_program(command: Sequence[str], limit_s: float, environment: dict[str, str] | None = None) -> Measured:
    """The JSON of a program's last line. Raises Skipped with what it said instead."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        with _process(command, env=environment, stdout=said, stderr=complained) as process:
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired as error:
                raise Skipped(f"it gave nothing within {limit_s:g} s") from error
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
        if process.returncode or not lines:
            complained.seek(0)
            raise Skipped(f"it failed here: {complained.read().decode(errors='replace').strip()[-300:]}")
        found: Measured = json.loads(lines[-1])
        return found


@contextmanager
def _process(
    command: Sequence[str], env: dict[str, str] | None = None, stdout: int | IO[bytes] | None = None, **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own: asked to stop at the end, then the whole group is killed."""
    process = subprocess.Popen(command, env=env, stdout=stdout, start_new_session=True, **more)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
