"""Servers of models that are known by name: the command that starts them, and how they are asked whether they live.

All listen on loopback alone, where the gateways of the cluster reach them: what they would let in without a key (vLLM's
``--api-key`` guards /v1 and leaves ``/invocations`` open) is not there for others. A key of their own keeps the
gateways out as well: give none.

Of a gang each member is started by the same command: the host fills in its rank, and where rank 0 is met
(``actors/work/service_ports.py``). Clients are answered by rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from actorgrid.errors import BadRequest

LOOPBACK = "127.0.0.1"


class ServicePreset(NamedTuple):
    """What is known of a server."""

    live_path: str
    """Answers as long as it serves."""
    command: Callable[[str, float, int], list[str]]
    """Of a model, by name or path, so many GPUs of each member, and so many members. Raises BadRequest for more than
    one where the server knows no such thing."""


HEADLESS = 'if [ "$RANK" != 0 ]; then set -- "$@" --headless; fi; exec "$@"'
"""vLLM's members but the first serve nobody, and have to be told so."""


def _vllm(model: str, gpus: float, gang: int) -> list[str]:
    words = ["vllm", "serve", model, "--host", LOOPBACK, "--port", "{port}"]
    if gang > 1:
        # Layers are split between members and matrices within them: what is sent between hosts is little then.
        words = ["sh", "-c", HEADLESS, "sh", *words, "--pipeline-parallel-size", str(gang)]
        words += ["--nnodes", str(gang), "--node-rank", "{rank}"]
        words += ["--master-addr", "{master_addr}", "--master-port", "{master_port}"]
    if gpus > 1:
        words += ["--tensor-parallel-size", str(int(gpus))]
    elif 0 < gpus < 1:
        # Of the whole device, of which it would else take nine tenths.
        words += ["--gpu-memory-utilization", f"{gpus:g}"]
    return words


def _sglang(model: str, gpus: float, gang: int) -> list[str]:
    words = ["python", "-m", "sglang.launch_server", "--model-path", model, "--host", LOOPBACK, "--port", "{port}"]
    words.append("--enable-metrics")
    if gang > 1:
        words += ["--nnodes", str(gang), "--node-rank", "{rank}", "--dist-init-addr", "{master_addr}:{master_port}"]
    if gpus * gang > 1:
        words += ["--tp", str(max(1, int(gpus)) * gang)]  # of all members together
    elif 0 < gpus < 1:
        words += ["--mem-fraction-static", f"{gpus * 0.9:.2f}"]
    return words


def _llama_cpp(model: str, gpus: float, gang: int) -> list[str]:
    if gang > 1:
        raise BadRequest(
            "llama.cpp is one process, and its replicas no gangs",
            asked=f"a gang of {gang}",
            hint="take vllm or sglang, or start llama.cpp's rpc-server by a command of your own",
        )
    source = "-m" if model.endswith(".gguf") else "-hf"
    words = ["llama-server", source, model, "--host", LOOPBACK, "--port", "{port}", "--metrics"]
    return [*words, "-ngl", "99" if gpus else "0"]


PRESETS: dict[str, ServicePreset] = {
    "vllm": ServicePreset("/health", _vllm),
    "sglang": ServicePreset("/health", _sglang),
    "llama.cpp": ServicePreset("/health", _llama_cpp),
}


def preset_command(name: str, model: str, gpus: float, more: Sequence[str], gang: int = 1) -> list[str]:
    """The command of a preset, with *more* arguments behind; *gpus*: of each member of a *gang*. Raises BadRequest."""
    return [*PRESETS[name].command(model, gpus, gang), *more]
