"""Compiles the stub drivers: one shared library for each vendor's, with every symbol that the bindings look up.

What a driver's C file does not write itself is generated: it can be scripted as all others, and answers "not
supported". A library that is there already, built from the same text for the same bindings, is taken again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUILT = HERE.parents[2] / "build" / "gpu-drivers"
WRITTEN = re.compile(r"^(?:API [\w *]+?\b|[A-Z]{4,}\()(\w+)[(,]", re.MULTILINE)


@dataclass(frozen=True)
class StubKind:
    """A vendor's library as a stub: how it is called, and what in which module looks up its symbols."""

    name: str
    file: str
    soname: str
    module: str
    looked_up: tuple[tuple[str, str], ...]
    """Modules and the patterns of what they look up."""
    not_supported: int


NVML = StubKind(
    "nvml", "libnvidia-ml.so.1", "libnvidia-ml.so.1", "pynvml", (("pynvml", r'_nvmlGetFunctionPointer\("(\w+)"\)'),), 3
)
AMD_SMI = StubKind(
    "amd_smi",
    "lib/libamd_smi.so",
    "libamd_smi.so",
    "amdsmi.amdsmi_wrapper",
    (
        ("amdsmi.amdsmi_wrapper", r"_libraries\['libamd_smi.so'\]\.(\w+)"),
        ("pyrsmi.rocml", r"rocm_lib\.(amdsmi_\w+)"),
    ),
    2,
)
LEVEL_ZERO = StubKind(
    "level_zero",
    "libze_loader.so.1",
    # glibc takes an object that is loaded already for one of the same name, and pyzes asks for this path.
    "/usr/lib/x86_64-linux-gnu/libze_loader.so.1",
    "pyzes",
    (("pyzes", r'getFunctionPointerList\("(\w+)"\)'),),
    0x78000003,
)

# Of memory: their symbols are all written, and the layouts, where there are any, are those of our own calls.
CUDA = StubKind("cuda", "libcuda.so.1", "libcuda.so.1", "", (), 801)
HIP = StubKind("hip", "libamdhip64.so", "libamdhip64.so", "", (), 801)
LEVEL_ZERO_MEMORY = StubKind(
    *("level_zero_memory", "libze_loader.so.1", "libze_loader.so.1", "actorgrid.device_memory.level_zero"),
    (("actorgrid.device_memory.level_zero", r'^    "(ze\w+)": \('),),
    0x78000003,
)


class NoCompiler(Exception):
    """There is no C compiler here, so no stub can be built."""


class NoBinding(Exception):
    """A vendor's binding is not installed, so nobody would call the stub."""


def build(kind: StubKind, omit: Sequence[str] = ()) -> Path:
    """The stub library of *kind*; an older driver lacks the symbols in *omit*. Raises NoCompiler, NoBinding."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompiler
    source = HERE / f"{kind.name}.c"
    texts = [_text_of(module) for module, _ in kind.looked_up]
    names: set[str] = set()
    for text, (_, pattern) in zip(texts, kind.looked_up, strict=True):
        names.update(re.findall(pattern, text))
    own = [(HERE / name).read_text() for name in (source.name, "state.h", "streams.h", "layout.py", "build.py")]
    key = hashlib.sha256("\0".join([*texts, *own, *sorted(omit)]).encode()).hexdigest()[:16]
    folder = BUILT / f"{kind.name}-{key}"
    if (folder / kind.file).exists():
        return folder / kind.file
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as made:
        work = Path(made) / "out"
        work.mkdir()
        bare = _compile(compiler, work / "bare", kind, None, sorted(names))
        (work / "layout.h").write_text(_layout(kind, bare) if kind.module else "")
        written = set(WRITTEN.findall(source.read_text()))
        _compile(compiler, work, kind, source, sorted(names - written), omit)
        shutil.rmtree(work / "bare")
        try:
            work.rename(folder)
        except OSError:  # another process was faster
            assert (folder / kind.file).exists()
    return folder / kind.file


def _text_of(module: str) -> str:
    package, _, rest = module.partition(".")
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise NoBinding(package)
    path = Path(found.origin)
    return (path.parent / f"{rest.replace('.', '/')}.py" if rest else path).read_text()


def _layout(kind: StubKind, bare: Path) -> str:
    environment = {**os.environ, "ROCM_HOME": str(bare.parent.parent), "ROCM_PATH": str(bare.parent.parent)}
    done = subprocess.run(
        [sys.executable, str(HERE / "layout.py"), kind.module, str(bare)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.stdout


def _compile(
    compiler: str, folder: Path, kind: StubKind, source: Path | None, generated: Sequence[str], omit: Sequence[str] = ()
) -> Path:
    folder.mkdir(exist_ok=True)
    rest = folder / "rest.c"
    lines = ['#define API __attribute__((visibility("default")))']
    if source is not None:
        lines = ["int scripted_or(const char *function, int otherwise);", *lines]
    for name in generated:
        answer = str(kind.not_supported)
        if source is not None:
            answer = f'scripted_or("{name}", {answer})'
        if name not in omit:
            lines.append(f"API int {name}(void) {{ return {answer}; }}")
    rest.write_text("\n".join(lines) + "\n")
    library = folder / kind.file
    library.parent.mkdir(exist_ok=True)
    sources = [str(rest)] if source is None else [str(rest), str(source)]
    hidden = [f"-D{name}=omitted_{name}" for name in omit]
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread", *hidden),
            *(f"-I{folder}", f"-I{HERE}", f"-Wl,-soname,{kind.soname}", "-o", str(library), *sources),
        ],
        check=True,
    )
    return library
