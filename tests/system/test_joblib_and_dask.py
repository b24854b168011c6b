"""joblib, scikit-learn and dask over a client: their programs with one line changed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.errors import BadRequest, NotSupported, UnpicklableFunction
from tests.docs.test_examples import ALL, Block
from tests.system.other_packages import with_packages


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with with_packages("joblib", "scikit-learn", "dask"):
        with actorgrid.LocalCluster(gpus=1) as cluster, cluster.client() as client:
            yield client


@pytest.mark.parametrize("block", [block for block in ALL if Path(__file__).name in block.skipped], ids=str)
def test_the_examples_of_the_documents_run(client: Client, block: Block, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(block.text, encoding="utf-8")
    there = {"ACTORGRID_URL": client.url, "ACTORGRID_TOKEN": client.http.token}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env={**os.environ, **there})
    assert done.returncode == 0, done.stderr


@pytest.fixture
def joblib(client: Client) -> Any:
    import joblib

    actorgrid.register_joblib()
    return joblib


def nested(count: int) -> Any:
    import joblib

    return joblib.Parallel(n_jobs=-1)(joblib.delayed(sqrt)(number) for number in range(count))


def no_seven(number: int) -> int:
    if number == 7:
        raise KeyError("seven")
    return number


# -- joblib


def test_calls_of_joblib_run_in_batches_and_in_order(client: Client, joblib: Any) -> None:
    with joblib.parallel_config(backend="actorgrid"):
        assert joblib.Parallel()(joblib.delayed(sqrt)(n) for n in range(3000)) == [sqrt(n) for n in range(3000)]
        later = joblib.Parallel(return_as="generator")(joblib.delayed(sqrt)(n) for n in range(5))
        assert list(later) == [sqrt(n) for n in range(5)]
        assert joblib.effective_n_jobs(-1) >= 1
        assert client._session is not None
    with joblib.parallel_config(backend="actorgrid", client=client, cpus=2):
        values = joblib.Parallel(n_jobs=2)(joblib.delayed(nested)(n) for n in range(3))
    assert values == [[sqrt(n) for n in range(count)] for count in range(3)]


def test_errors_of_calls_and_of_pickling_end_the_whole_call(client: Client, joblib: Any) -> None:
    with joblib.parallel_config(backend="actorgrid", client=client):
        with pytest.raises(KeyError, match="seven"):
            joblib.Parallel()(joblib.delayed(no_seven)(n) for n in range(100))
        with pytest.raises(UnpicklableFunction):
            joblib.Parallel(batch_size=1)(joblib.delayed(len)([threading.Lock() if n == 50 else n]) for n in range(90))
        assert joblib.Parallel()(joblib.delayed(no_seven)(n) for n in range(3)) == [0, 1, 2]
    with pytest.raises(BadRequest), joblib.parallel_config(backend="actorgrid", gpu=1):
        joblib.Parallel()(joblib.delayed(abs)(n) for n in range(2))
    with joblib.parallel_config(backend="actorgrid", client=client), pytest.raises(ValueError, match="n_jobs == 0"):
        joblib.Parallel(n_jobs=0)(joblib.delayed(abs)(n) for n in range(2))


def test_scikit_learn_searches_over_it(client: Client, joblib: Any) -> None:
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    samples, labels = load_iris(return_X_y=True)
    grid = {"max_depth": [1, 2, 3, 5], "min_samples_leaf": [1, 5]}
    with joblib.parallel_config(backend="actorgrid", client=client):
        found = GridSearchCV(DecisionTreeClassifier(random_state=0), grid, cv=3).fit(samples, labels)
    here = GridSearchCV(DecisionTreeClassifier(random_state=0), grid, cv=3).fit(samples, labels)
    assert found.best_params_ == here.best_params_ and found.best_score_ == here.best_score_


# -- dask

SCHEDULER_TESTS = [
    "test_badkey",
    "test_data_not_in_dict_is_ok",
    "test_get",
    "test_get_stack_limit",
    "test_get_with_list",
    "test_get_with_list_top_level",
    "test_get_with_nested_list",
    "test_get_works_with_unhashables_in_values",
    "test_nested_badkey",
    "test_nested_tasks",
    "test_with_HighLevelGraph",
]


def test_none_of_dasks_tests_of_a_scheduler_is_left_out(client: Client) -> None:
    from dask.utils_test import GetFunctionTestMixin

    assert {name for name in dir(GetFunctionTestMixin) if name.startswith("test_")} <= set(SCHEDULER_TESTS)


@pytest.mark.parametrize("name", SCHEDULER_TESTS)
def test_of_dask_passes(client: Client, name: str) -> None:
    from dask.utils_test import GetFunctionTestMixin

    tests = GetFunctionTestMixin()
    tests.get = client.get
    if not hasattr(tests, name):
        pytest.skip("this dask has no such test")
    getattr(tests, name)()


def test_dask_computes_on_a_client(client: Client) -> None:
    import dask
    from dask.callbacks import Callback

    @dask.delayed
    def increment(number: int) -> int:
        return number + 1

    @dask.delayed
    def fail(number: int) -> int:
        raise KeyError(number)

    total = dask.delayed(sum)([increment(increment(number)) for number in range(20)])
    assert total.compute(scheduler=client) == 230
    told: list[Any] = []
    with Callback(posttask=lambda key, *_: told.append(key), finish=lambda *last: told.append(last[-1])):
        values = dask.compute(increment(1), increment(2), scheduler=client.options(cpus=0.5).get)
    assert values == (2, 3) and len(told) == 3 and told[-1] is False
    with pytest.raises(KeyError, match="1"):
        increment(fail(1)).compute(scheduler=client)
    assert client._session is not None and client._session.figures()["unfinished"] == 0


def test_without_them_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("joblib", "joblib.parallel", "dask", "dask._task_spec"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotSupported, match="joblib"):
        actorgrid.register_joblib()
    with pytest.raises(NotSupported, match="dask"), Client("http://127.0.0.1:9", "x") as client:
        client.get({"x": 1}, "x")
