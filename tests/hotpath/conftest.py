from __future__ import annotations

from typing import Any

import pytest

import actorgrid.hotpath
from actorgrid.hotpath.reference.placement import PlacementEngine as ReferenceEngine

IMPLEMENTATIONS: dict[str, Any] = {"reference": ReferenceEngine}
if actorgrid.hotpath.COMPILED:
    IMPLEMENTATIONS["compiled"] = actorgrid.hotpath.PlacementEngine


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def engine_kind(request: pytest.FixtureRequest) -> Any:
    return IMPLEMENTATIONS[request.param]
