from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.rig import Rig

SOURCE = Path(__file__).with_name("nvml_stub.c")


class NvmlStub:
    """The stub library and the state file that says how it behaves."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library = library
        self.state = state
        self.values: dict[str, str] = {}

    def set(self, **values: object) -> None:
        """Change keys (``gpu0_temp`` stands for ``0.temp``); ``None`` removes one."""
        for name, value in values.items():
            key = name[3:].replace("_", ".", 1) if name.startswith("gpu") else name
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = str(value)
        text = "".join(f"{key}={value}\n" for key, value in self.values.items())
        written = self.state.with_suffix(".new")
        written.write_text(text)
        written.rename(self.state)

    def add_gpu(self, number: int, **values: object) -> None:
        """One H100, as NVML describes it, changed by *values*."""
        fields: dict[str, object] = {
            "uuid": f"GPU-11111111-0000-0000-0000-00000000000{number}",
            "name": "NVIDIA H100 80GB HBM3",
            "total_mib": 81_559,
            "used_mib": 512 + number,
            "bus": f"00000000:{0x1B + number:02X}:00.0",
            "capability": "9.0",
            "util": 10 + number,
            "temp": 40 + number,
            "power_mw": 100_500,
        }
        self.set(count=number + 1, **{f"gpu{number}_{name}": value for name, value in (fields | values).items()})


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here: the NVML stub cannot be built, so the real bindings are not exercised")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-Wall", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"),
            *("-o", str(library), str(SOURCE)),
        ],
        check=True,
    )
    return library


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlStub:
    """A stub with no devices yet, found by every probe child started from here."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    stub = NvmlStub(nvml_library, tmp_path / "nvml.state")
    stub.set(driver="600.01")
    monkeypatch.setenv("ACTORGRID_NVML_LIBRARY", str(nvml_library))
    monkeypatch.setenv("NVML_STUB_STATE", str(stub.state))
    return stub


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(source: str = "simulated:8xH100-80GB", **gpus: Any) -> Rig:
        made.append(Rig(tmp_path / f"data{len(made)}", source, **gpus))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig().up()
