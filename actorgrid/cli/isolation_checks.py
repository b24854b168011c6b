"""What ``doctor`` says of how work is kept apart: from the agent, and one user's from another's."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .checks import Finding


def check_isolation() -> Iterator[Finding]:
    """Try what this kernel and this user can keep work in by, and say who would enforce what."""
    from actorgrid.actors.work.isolation.levels import enforced_at
    from actorgrid.actors.work.isolation.probes import MEANS, try_out

    means = try_out()
    there = [text for name, text in MEANS.items() if means.has(name)]
    landlock = f" (Landlock ABI {means.landlock_abi})" if means.landlock_abi else ""
    text = f"tried, and to be had: {'; '.join(there) or 'nothing'}{landlock}"
    missing = means.missing()
    if missing:
        text += f". Not: {'; '.join(missing)}"
    said = ", ".join(f"{aspect}: {who}" for aspect, who in enforced_at(means.best, means.held).items())
    text += f". At its best, {means.best}, work is kept from what is not its own by ({said})"
    if means.best == "full" and means.has("uid"):
        from actorgrid.actors.work.containers_apart import runtimes_apart

        runtimes = runtimes_apart("auto", os.environ.get("PATH", os.defpath))
        text += f". Containers at full: {' and '.join(runtimes) or 'none, for want of podman and docker'}"
    fix = "" if means.has("uid") else "only an agent that runs as root can have work run as another uid"
    yield Finding("isolation", "ok" if means.best == "full" else "note", text, fix)


def check_tenancy(setting: str = "auto") -> Iterator[Finding]:
    """Check which users are kept apart from which; *setting*: ``work.isolation``."""
    from actorgrid.actors.work.isolation.probes import try_out

    able = try_out().best == "full"
    if able and setting == "full":
        yield Finding("tenancy", "ok", "each user's work has a uid of its own; sessions' workers have the agent's")
        return
    text = f"work runs as uid {os.getuid()}, which is the agent's own"
    if os.getuid() == 0:
        text += ": root, so that whoever may submit work may do anything on this machine"
    if able and setting == "auto":
        text += "; commands and functions of tenants other than 'default' have a uid of their user's own"
        yield Finding("tenancy", "note", text, "all users' do with --set work.isolation=full")
    elif os.getuid() == 0:
        yield Finding("tenancy", "note", f"single tenant: {text}", "run the agent as a user of its own")
    else:
        yield Finding("tenancy", "note", f"single tenant: {text}")
