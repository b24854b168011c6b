"""What an installed wheel must hold: kernels that load, stripped and bound to no folder of the builder's.

Run by cibuildwheel in an environment with the wheel and nothing of this tree: ``python tests/wheel.py``.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from importlib import resources

import actorgrid.hotpath as hotpath
from actorgrid.hotpath import PlacementEngine

PT_DYNAMIC, DT_RPATH, DT_RUNPATH = 2, 15, 29


def dynamic_tags(kernel: bytes) -> set[int]:
    """The tags of the dynamic section of a 64-bit little-endian ELF file."""
    (headers,) = struct.unpack_from("<Q", kernel, 32)
    size, count = struct.unpack_from("<HH", kernel, 54)
    for header in range(headers, headers + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", kernel, header)
        if kind == PT_DYNAMIC:
            return {tag for tag, _ in struct.iter_unpack("<qQ", kernel[offset : offset + length])}
    return set()


def marks(kernel: bytes) -> list[str]:
    """What should not be in a kernel: a path of libraries, debugging information, a table of local symbols."""
    unwanted = {b".symtab": "symbols", b".debug_info": "debugging information"}
    found = [text for name, text in unwanted.items() if b"\0" + name + b"\0" in kernel]
    tags = dynamic_tags(kernel)
    assert tags, "this is no shared library"
    return found + (["a path of libraries"] if tags & {DT_RPATH, DT_RUNPATH} else [])


def main() -> int:
    """Gives the exit status; says what is wrong."""
    assert hotpath.COMPILED, "the wheel holds no kernels"
    engine = PlacementEngine(policy="fgd")
    engine.add_node("host", cpu_milli=8000, memory_mib=8192, gpu_count=1, gpu_model="H100")
    assert engine.place(cpu_milli=1000, memory_mib=512, gpu_count=1) is not None
    folder = resources.files("actorgrid.hotpath")
    kernels = [entry for entry in folder.iterdir() if entry.name.endswith(".so")]
    assert kernels, "no kernel lies in the wheel"
    wrong = [f"{entry.name}: {mark}" for entry in kernels for mark in marks(entry.read_bytes())]
    unwanted = [entry.name for entry in folder.iterdir() if entry.name.endswith(".c")]
    assert not wrong and not unwanted, (wrong, unwanted)
    subprocess.run([sys.executable, "-m", "actorgrid", "--version"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
