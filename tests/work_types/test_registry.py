"""Types of work by name: their schemas, what is wrong with arguments, plug-ins that are broken."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from actorgrid.errors import InvalidWork
from actorgrid.work_types import registry
from actorgrid.work_types.base import WorkArguments, WorkPlan, WorkType
from actorgrid.work_types.plain import call_target
from actorgrid.work_types.registry import BUILT_IN, find_work_type, work_types


class Echo(WorkType):
    """Of an installed package."""

    name = "echo"
    summary = "say it again"

    class Arguments(WorkArguments):
        word: str

    arguments = Arguments

    def plan(self, arguments: Any) -> WorkPlan:
        return WorkPlan(command=("echo", arguments.word))


class Broken(Echo):
    def schema(self) -> dict[str, Any]:
        raise RuntimeError("no schema today")


@pytest.fixture
def plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests.work_types.test_registry"
    named = {"echo": "Echo", "broken": "Broken", "gone": "Gone", "no_type": "dict_of", "command": "Echo"}
    entries = [EntryPoint(name, f"{here}:{value}", registry.GROUP) for name, value in named.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == registry.GROUP else [])


def dict_of() -> dict[str, Any]:
    return {}


def test_every_schema_is_one_and_every_type_says_what_it_does() -> None:
    types, broken = work_types()
    assert [each.name for each in types] == list(BUILT_IN) and broken == []
    for each in types:
        Draft202012Validator.check_schema(each.schema())
        assert each.summary and each.schema()["additionalProperties"] is False


def test_a_broken_plug_in_is_named_and_hides_none(plug_ins: None) -> None:
    types, broken = work_types()
    assert [each.name for each in types] == [*BUILT_IN, "echo"]
    reasons = {each.name: each.reason for each in broken}
    assert set(reasons) == {"broken", "gone", "no_type"}
    assert "no schema today" in reasons["broken"] and "no WorkType" in reasons["no_type"]
    with pytest.raises(InvalidWork, match="cannot be used") as caught:
        find_work_type("gone")
    assert "Gone" in caught.value.asked
    echo = find_work_type("echo")
    assert echo.plan(echo.checked({"word": "x"})).command == ("echo", "x")
    assert find_work_type("command").name == "command", "nobody replaces what others count on"


def test_doctor_names_what_is_broken(plug_ins: None) -> None:
    from actorgrid.cli.plug_in_checks import check_work_types

    found = {finding.text.partition(":")[0]: finding for finding in check_work_types()}
    assert set(found) == {"broken", "gone", "no_type"}
    assert found["gone"].level == "problem" and "Gone" in found["gone"].fix


def test_an_unknown_type_gets_the_nearest_name() -> None:
    with pytest.raises(InvalidWork, match="no work type") as caught:
        find_work_type("gpu-computations")
    assert "gpu_computation" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "given", "path"),
    [
        ("command", {}, "command"),
        ("command", {"command": []}, "command"),
        ("command", {"command": ["true"], "evn": {}}, "evn"),
        ("function", {"target": "no function"}, "target"),
        (
            "container",
            {"command": ["true"], "image": "x", "mounts": [{"source": 3, "target": "/a"}]},
            "mounts.0.source",
        ),
        ("gpu_computation", {}, "(the whole)"),
        ("gpu_computation", {"operation": "matmul", "size": 0}, "size"),
        ("data_transformation", {"inputs": ["a.csv"], "output": "b.csv", "steps": [{"op": "sort"}]}, "steps.0.sort.by"),
        ("data_transformation", {"inputs": ["a.csv"], "output": "b.csv", "steps": [{"op": "srot"}]}, "steps.0"),
        ("neuromorphic_processing", {"neurons": 3, "steps": 1, "drive_mv": [1.0]}, "(the whole)"),
        ("blockchain_transaction", {"rpc_url": "ftp://x", "to": "0x" + "0" * 40, "key_env": "K"}, "rpc_url"),
        ("blockchain_transaction", {"rpc_url": "http://x", "to": "0x" + "0" * 40}, "(the whole)"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(kind: str, given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidWork, match="arguments of") as caught:
        find_work_type(kind).checked(given)
    assert path in caught.value.details["paths"], caught.value.details


def test_plans_of_commands_and_containers() -> None:
    container = find_work_type("container")
    mounts = [{"source": "/data", "target": "/in", "read_only": True}]
    plan = container.plan(
        container.checked({"image": "debian", "command": ["ls"], "mounts": mounts, "env": {"A": "b"}})
    )
    assert plan.options == {"container": "debian", "mounts": ["/data:/in:ro"], "env": {"A": "b"}}
    command = find_work_type("command")
    plan = command.plan(command.checked({"command": ["ls"], "cwd": "/tmp"}))
    assert (plan.command, plan.cwd, plan.options) == (("ls",), "/tmp", {})


def test_a_function_is_found_where_the_work_runs() -> None:
    assert call_target("math:hypot", [3, 4], {}) == 5.0
    for wrong in ("no_such_module:f", "math:no_such"):
        with pytest.raises(InvalidWork, match="is not there"):
            call_target(wrong, [], {})


def make_doubler() -> Any:
    return lambda batch: [2 * each for each in batch]


def make_liar() -> Any:
    return lambda batch: batch[1:]


def test_a_model_runs_in_batches_and_a_service_is_asked_about_texts() -> None:
    inference = find_work_type("machine_learning_inference")
    here = "tests.work_types.test_registry"
    plan = inference.plan(inference.checked({"model": f"{here}:make_doubler", "inputs": [1, 2, 3], "batch_size": 2}))
    assert plan.function is not None and plan.function(*plan.arguments) == [2, 4, 6]
    liar = inference.plan(inference.checked({"model": f"{here}:make_liar", "inputs": [1, 2]}))
    assert liar.function is not None
    with pytest.raises(InvalidWork, match="one output for each"):
        liar.function(*liar.arguments)
    for neither in ({}, {"service": "llama", "model": f"{here}:make_liar"}):
        with pytest.raises(InvalidWork, match="a model or a service"):
            inference.plan(inference.checked({**neither, "inputs": ["x"]}))
    with pytest.raises(InvalidWork, match="text") as caught:
        inference.plan(inference.checked({"service": "llama", "inputs": ["x", 1]}))
    assert caught.value.details["paths"] == ["inputs.1"]


@pytest.mark.parametrize("operation", ["matmul", "fft", "reduce"])
def test_gpu_computations_are_the_same_on_a_cpu(operation: str) -> None:
    numpy = pytest.importorskip("numpy")
    kind = find_work_type("gpu_computation")
    plan = kind.plan(kind.checked({"operation": operation, "size": 16, "dtype": "float64", "seed": 7}))
    assert plan.options == {"gpus": 1.0} and plan.function is not None
    found = plan.function(**plan.keywords)
    a = numpy.random.default_rng(7).random((16, 16))
    if found["device"] == "cpu":
        whole = {"matmul": (a @ a).sum(), "fft": abs(numpy.fft.rfft(a.ravel())).sum(), "reduce": a.sum()}[operation]
        assert found["checksum"] == pytest.approx(whole)
    assert found["flops_per_s"] > 0
