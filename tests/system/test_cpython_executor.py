"""CPython's own tests of executors, with a client in place of its pools: those that come with the running Python.

Distributions often leave them out. ``CPYTHON_TESTS=DIR`` names a ``Lib/test`` of the same version to take them from,
such as that of Debian's ``libpython3.11-testsuite``. What does not apply is named below, with the reason.
"""

from __future__ import annotations

import gc
import importlib
import os
import types
import unittest
from collections.abc import Iterator
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client

SUITE = "test.test_concurrent_futures"
MIXINS = {
    "ExecutorTest": ".executor",
    "WaitTests": ".test_wait",
    "AsCompletedTests": ".test_as_completed",
    "ExecutorShutdownTest": ".test_shutdown",
}
BY_NAME = "starts an executor of concurrent.futures by its name in another interpreter"
NOT_APPLICABLE = {
    "ExecutorTest.test_max_workers_negative": "a client has no number of workers: the cluster has",
    "ExecutorTest.test_map_buffersize_type_validation": "the library's own words and types for each wrong buffersize",
    "ExecutorTest.test_map_buffersize_value_validation": "the library's own words for a wrong buffersize",
    "ExecutorShutdownTest.test_interpreter_shutdown": BY_NAME,
    "ExecutorShutdownTest.test_submit_after_interpreter_shutdown": BY_NAME,
    "ExecutorShutdownTest.test_hang_gh83386": BY_NAME,
    "ExecutorShutdownTest.test_hang_gh94440": BY_NAME,
}


def _mixins() -> dict[str, Any]:
    """The suite's classes by name; where it is one module, all from there. Raises ImportError."""
    if "CPYTHON_TESTS" in os.environ:
        importlib.import_module("test").__path__.append(os.environ["CPYTHON_TESTS"])
    suite = importlib.import_module(SUITE)
    one = not hasattr(suite, "__path__")
    return {
        name: getattr(suite if one else importlib.import_module(where, SUITE), name) for name, where in MIXINS.items()
    }


try:
    FOUND, WHY = _mixins(), ""
except ImportError as error:
    FOUND, WHY = {}, f"this Python comes without {SUITE} (CPYTHON_TESTS=DIR says where it is): {error}"

CASES = [
    (name, method)
    for name, mixin in FOUND.items()
    for method in sorted(dir(mixin))
    if method.startswith("test_") and f"{name}.{method}" not in NOT_APPLICABLE
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[actorgrid.LocalCluster]:
    with actorgrid.LocalCluster(gpus=0) as cluster:
        yield cluster


def test_the_suite_is_there() -> None:
    if WHY:
        pytest.skip(WHY)
    assert len(CASES) >= 20


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "method"), CASES)
def test_of_cpython_passes(cluster: actorgrid.LocalCluster, name: str, method: str) -> None:
    made: list[Client] = []

    class InPlace:
        executor_type = Client
        worker_count = 2

        def setUp(self) -> None:
            self.executor = cluster.client()
            self.executor.submit(abs, 0).result(60)  # a pool has its workers from the start
            made.append(self.executor)

        def tearDown(self) -> None:
            self.executor.shutdown(wait=True)
            del self.executor

    case = types.new_class("Case", (InPlace, FOUND[name], unittest.TestCase))(method)
    result = unittest.TestResult()
    case.run(result)
    for client in made:
        assert client._closed
    made.clear()
    gc.collect()
    if result.skipped:
        pytest.skip(result.skipped[0][1])
    assert result.wasSuccessful(), "\n".join(text for _, text in result.errors + result.failures)
