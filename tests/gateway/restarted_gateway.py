"""A host of one gateway in a process of its own, for tests that kill it: ``python FILE DATA_DIR BOOT_ID``."""

from __future__ import annotations

import sys
from pathlib import Path

from actorgrid.actors.gateway.actor import Gateway
from actorgrid.actors.host.context import HostContext
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.supervisors.inline import InlineNode


def main() -> None:
    settings = Settings()
    settings.cluster.base_port = 0
    host = HostContext(HostPaths(Path(sys.argv[1])), settings, "h1", "box", 1, sys.argv[2])
    host.paths.make()
    node = InlineNode(real_time=True)
    gateway = node.add(Gateway, host)
    assert isinstance(gateway, Gateway)
    print(gateway.url, flush=True)
    node.run_until(lambda: False, 60.0, "the end")


if __name__ == "__main__":
    main()
