"""Hosts without sysfs, as some containers are: devices come from the vendors' libraries, and what they lack is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.drivers.build import AMD_SMI, LEVEL_ZERO, NVML, StubKind
from tests.gpu.drivers.stubs import StubDriver

pytestmark = pytest.mark.system
LOOK = """
import json, sys
from dataclasses import asdict
from actorgrid.actors.gpu.inventory import traces
from actorgrid.actors.gpu.probe import look_once
from actorgrid.actors.gpu.vendors.pci import bound_gpus, list_gpus
report = look_once(sys.argv[1], 60.0)
kernel = [len(list_gpus()), len(bound_gpus())]
print(json.dumps({"report": asdict(report), "traces": traces(sys.argv[1])[0], "kernel": kernel}))
"""


def looked(vendor: str) -> dict[str, Any]:
    """What a probe child of *vendor* finds in a mount namespace whose /sys is empty."""
    inside = 'mount -t tmpfs none /sys && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("no user and mount namespaces here: /sys cannot be taken away")
    done = subprocess.run(
        [*command, sys.executable, "-c", LOOK, vendor], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("vendor", "kind"), [("nvidia", NVML), ("amd", AMD_SMI), ("intel", LEVEL_ZERO)])
def test_devices_come_from_the_library_and_what_only_the_kernel_says_has_its_reason(
    make_stub: Callable[[StubKind], StubDriver], vendor: str, kind: StubKind
) -> None:
    stub = make_stub(kind)
    stub.add_machine(2)
    if kind is AMD_SMI:
        stub.put({f"{number}.numa": None for number in range(2)})
    found = looked(vendor)
    assert found["kernel"] == [0, 0]
    report = found["report"]
    assert (report["outcome"], len(report["devices"])) == ("ok", 2), report["message"]
    assert [device["numa_node"] for device in report["devices"]] == [None, None]
    for facts in report["facts"]:
        assert "no sysfs here" in facts["unsupported"]["numa_node"]
        assert facts["pcie_generation_max"] == 5, "which the library says"
