from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.drivers.build import AMD_SMI, LEVEL_ZERO, NVML, NoBinding, NoCompiler, StubKind, build
from tests.gpu.drivers.stubs import StubDriver
from tests.gpu.rig import Rig

MakeStub = Callable[[StubKind], StubDriver]


def stub_library(kind: StubKind, omit: tuple[str, ...] = ()) -> Path:
    """The library of *kind*, built now or before. Skips where it cannot be."""
    try:
        return build(kind, omit)
    except NoCompiler:
        pytest.skip("no C compiler here: stub drivers cannot be built, so the real bindings are not exercised")
    except NoBinding as missing:
        pytest.skip(f"{missing} is not installed: nobody would call the stub driver")


@pytest.fixture
def make_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeStub:
    """Stub drivers without devices yet, found by every probe child started from here."""

    def make(kind: StubKind) -> StubDriver:
        stub = StubDriver(kind, stub_library(kind), tmp_path / f"{kind.name}.state")
        stub.set(driver={NVML: "600.01", AMD_SMI: "6.12.12"}.get(kind, ""))
        if kind is NVML:
            stub.set(cuda=13010, nvml="13.600.01")
        for name, value in stub.variables.items():
            monkeypatch.setenv(name, value)
        return stub

    return make


@pytest.fixture
def nvml(make_stub: MakeStub) -> StubDriver:
    return make_stub(NVML)


@pytest.fixture
def amd_smi(make_stub: MakeStub) -> StubDriver:
    return make_stub(AMD_SMI)


@pytest.fixture
def level_zero(make_stub: MakeStub) -> StubDriver:
    return make_stub(LEVEL_ZERO)


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
