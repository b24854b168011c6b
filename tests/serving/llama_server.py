"""llama.cpp's own server, unmodified, from the wheel of xllamacpp: ``python llama_server.py FILE.gguf PORT``."""

import signal
import sys

import xllamacpp


def main(model: str, port: int) -> None:
    """Serve until SIGTERM."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.model_alias = ["tiny"]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx = 8192
    parameters.n_parallel = 4
    parameters.n_gpu_layers = 0
    parameters.cpuparams.n_threads = 1
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    sys.stderr.write(f"listening at {server.listening_address}\n")
    sys.stderr.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
