"""What work may do at the door: only what is served, and nothing that changes the cluster."""

from __future__ import annotations

from actorgrid.actors.gateway.server.application import ROUTES
from actorgrid.actors.gateway.server.rights import WORK_MAY

OF_ADMINISTRATORS = ("/api/keys", "/api/tokens", "/api/ca", "/api/inspect", "/leave", "/restart", "/drain")


def test_all_that_work_may_use_is_served() -> None:
    assert {(route.method, route.documented_path) for route in ROUTES} >= WORK_MAY


def test_work_may_not_change_the_cluster() -> None:
    for method, path in WORK_MAY:
        assert not any(part in path for part in OF_ADMINISTRATORS), path
        assert method == "GET" or path not in ("/api/config/{key}", "/api/quotas/{user}")
