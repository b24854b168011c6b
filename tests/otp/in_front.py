"""A process that runs a tree and says how its servers are for each line it is sent; it ends with its input."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.supervisor import WhichChildren
from actorgrid.supervisors.tree import DescriptorReady, Tree, TreeGone
from actorgrid.supervisors.wire import TreeSettings


def below(tree: Tree, supervisor: Any) -> dict[str, Any]:
    found = {}
    for child in tree.call(supervisor, WhichChildren(), 30.0):
        end = child["last_exit"]
        found[child["name"]] = {"pid": child["pid"], "last_exit": end and end["reason"]}
        if child["type"] == "supervisor" and child["state"] == "up":
            found |= below(tree, child["ref"])
    return found


def say(tree: Tree) -> None:
    print(json.dumps({"admin": tree.admin_pid, "servers": below(tree, "root")}), flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        notes = (os.path.join(folder, "notes"),)

        def hand(name: str, kind: str = "Hand") -> ChildSpec:
            return ChildSpec(name, f"tests.otp.servers:{kind}", arguments=notes)

        team = "tests.otp.servers:Team"
        branch = (SupervisorFlags(), (hand("leaf"), hand("quick_leaf", "Quick")))
        children = (hand("hand"), ChildSpec("branch", team, type="supervisor", arguments=branch))
        with Tree(watch=(sys.stdin.fileno(),), settings=TreeSettings(beat_interval_s=0.2, hang_margin_s=0.4)) as tree:
            tree.up(team, None, SupervisorFlags(), children)
            say(tree)
            while not isinstance(event := tree.next_event(None), TreeGone):
                if isinstance(event, DescriptorReady):
                    if not sys.stdin.readline():
                        return
                    say(tree)


if __name__ == "__main__":
    main()
