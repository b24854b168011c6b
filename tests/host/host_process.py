"""``python -m tests.host.host_process DIR SPECS``: a host of test servers; prints the error that ended it as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from actorgrid.actors.host.boot import run_host
from actorgrid.configs.schema import Settings
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.child import ChildSpec


def main() -> None:
    directory, specs = sys.argv[1:]
    children = [ChildSpec(**fields) for fields in json.loads(specs)]
    try:
        run_host(Settings(), Path(directory), lambda info: print(json.dumps({"ready": info}), flush=True), children)
    except ActorGridError as error:
        print(json.dumps({"error": error.to_dict()}), flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
