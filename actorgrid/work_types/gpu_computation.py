"""Dense computations on a GPU: a named operation, or a function of the user's, with a GPU unless one asks otherwise."""

from __future__ import annotations

import time
from typing import Any, Literal

from pydantic import Field, model_validator

from .base import WorkArguments, WorkPlan, WorkType
from .plain import call_target
from .targets import Target, missing_library

FLOATS = {"float32": 4, "float64": 8}


class GpuArguments(WorkArguments):
    """An operation on arrays that are made of a seed, or a function by its name."""

    operation: Literal["matmul", "fft", "reduce"] | None = None
    size: int = Field(default=1024, ge=1, le=32_768, description="of matmul n x n; else the length is its square")
    dtype: Literal["float32", "float64"] = "float32"
    repeats: int = Field(default=1, ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**32)
    target: Target | None = None
    args: list[Any] = Field(default_factory=list, max_length=1_000)
    kwargs: dict[str, Any] = Field(default_factory=dict, max_length=1_000)

    @model_validator(mode="after")
    def _one(self) -> GpuArguments:
        if (self.operation is None) == (self.target is None):
            raise ValueError("one of operation and target says what is computed")
        return self


class GpuComputation(WorkType):
    """Computes on a GPU."""

    name = "gpu_computation"
    summary = "matmul, fft or reduce on arrays, or a function of yours, with a GPU"
    arguments = GpuArguments

    def plan(self, arguments: GpuArguments) -> WorkPlan:
        """Run it with one GPU, unless another share is asked for."""
        options = {"gpus": 1.0}
        if arguments.target is not None:
            return WorkPlan(call_target, (arguments.target, arguments.args, arguments.kwargs), options=options)
        words = {name: getattr(arguments, name) for name in ("operation", "size", "dtype", "repeats", "seed")}
        return WorkPlan(compute, keywords=words, options=options)


def compute(operation: str, size: int, dtype: str, repeats: int, seed: int) -> dict[str, Any]:
    """Carry out an operation: seconds of one repeat, floating-point operations a second, and what came of it.

    By torch on a GPU where both are there, else by numpy on the CPU; ``device`` says which.
    """
    found = _by_torch(operation, size, dtype, repeats, seed)
    return found if found is not None else _by_numpy(operation, size, dtype, repeats, seed)


def _by_torch(operation: str, size: int, dtype: str, repeats: int, seed: int) -> dict[str, Any] | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    generator = torch.Generator(device="cuda").manual_seed(seed)
    a = torch.rand((size, size), generator=generator, device="cuda", dtype=getattr(torch, dtype))
    run = {"matmul": lambda: a @ a, "fft": lambda: torch.fft.rfft(a.flatten()).abs(), "reduce": lambda: a.sum()}
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        result = run[operation]()
    torch.cuda.synchronize()
    took_s = (time.perf_counter() - began) / repeats
    return _figures(operation, size, took_s, float(result.sum()), torch.cuda.get_device_name())


def _by_numpy(operation: str, size: int, dtype: str, repeats: int, seed: int) -> dict[str, Any]:
    try:
        import numpy
    except ImportError as error:
        raise missing_library(error, "neuromorphic") from error
    a = numpy.random.default_rng(seed).random((size, size), dtype=dtype)
    run = {"matmul": lambda: a @ a, "fft": lambda: abs(numpy.fft.rfft(a.ravel())), "reduce": lambda: a.sum()}
    began = time.perf_counter()
    for _ in range(repeats):
        result = run[operation]()
    took_s = (time.perf_counter() - began) / repeats
    return _figures(operation, size, took_s, float(result.sum(dtype="float64")), "cpu")


def _figures(operation: str, size: int, took_s: float, checksum: float, device: str) -> dict[str, Any]:
    count = size * size
    # Of an FFT of n real numbers 2.5 n log2 n, as FFTW's authors count.
    operations = {"matmul": 2.0 * size**3, "fft": 2.5 * count * max(1, (count - 1).bit_length()), "reduce": count}
    rate = operations[operation] / max(took_s, 1e-9)
    return {"seconds": took_s, "flops_per_s": rate, "checksum": checksum, "device": device}
