from __future__ import annotations

import pickle
from typing import Any

import pytest

from actorgrid.errors import InvalidChildSpec
from actorgrid.supervisors.child import (
    CHILDREN_MAX,
    ChildSpec,
    SupervisorFlags,
    check_children,
    check_significance,
    check_supervisor,
    kind_of,
)

KIND = "package.module:Class"


def test_a_spec_knows_where_its_class_is() -> None:
    spec = ChildSpec("gateway", KIND)
    assert (spec.module, spec.class_name) == ("package.module", "Class")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"id": ""}, "id"),
        ({"id": "Upper"}, "id"),
        ({"id": "a" * 64}, "id"),
        ({"id": 7}, "id"),
        ({"kind": "package.module.Class"}, "kind"),
        ({"kind": "package.module:"}, "kind"),
        ({"restart": "always"}, "restart"),
        ({"shutdown": -1}, "shutdown"),
        ({"shutdown": "soon"}, "shutdown"),
        ({"shutdown": True}, "shutdown"),
        ({"shutdown": float("nan")}, "shutdown"),
        ({"shutdown": 1e9}, "shutdown"),
        ({"start_timeout_s": 0}, "start_timeout_s"),
        ({"start_timeout_s": 3601}, "start_timeout_s"),
        ({"type": "servant"}, "type"),
        ({"type": None}, "type"),
        ({"significant": 1}, "significant"),
        ({"significant": True}, "significant"),
        ({"arguments": [1]}, "arguments"),
        ({"register": "yes"}, "register"),
        ({"max_handler_s": 0}, "max_handler_s"),
        ({"max_handler_s": float("inf")}, "max_handler_s"),
        ({"max_handler_s": "5"}, "max_handler_s"),
        ({"memory_mib": 0}, "memory_mib"),
        ({"memory_mib": 1.5}, "memory_mib"),
        ({"memory_mib": True}, "memory_mib"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidChildSpec, match=f"{wrong} is wrong") as caught:
        ChildSpec(**{"id": "child", "kind": KIND, **fields})
    assert caught.value.hint and repr(fields[wrong]) in caught.value.asked


@pytest.mark.parametrize(("shutdown", "limit_s"), [(2, 2.0), ("brutal_kill", 0.0), ("infinity", None)])
def test_shutdown_in_seconds(shutdown: Any, limit_s: float | None) -> None:
    assert ChildSpec("child", KIND, shutdown=shutdown).shutdown_s() == limit_s


@pytest.mark.parametrize(
    ("restart", "after_normal", "after_crash"),
    [("permanent", True, True), ("transient", False, True), ("temporary", False, False)],
)
def test_which_end_is_answered_with_a_restart(restart: Any, after_normal: bool, after_crash: bool) -> None:
    spec = ChildSpec("child", KIND, restart=restart)
    assert spec.wants_restart(normal=True) is after_normal
    assert spec.wants_restart(normal=False) is after_crash


def test_two_children_of_one_name_and_too_many_are_refused() -> None:
    with pytest.raises(InvalidChildSpec, match="two children are called 'a'"):
        check_children([ChildSpec("a", KIND), ChildSpec("a", KIND)])
    with pytest.raises(InvalidChildSpec, match="more than one supervisor takes"):
        check_children(ChildSpec(f"c{n}", KIND) for n in range(CHILDREN_MAX + 1))
    with pytest.raises(InvalidChildSpec, match="something else than a ChildSpec"):
        check_children(["a"])  # type: ignore[list-item]


def test_a_worker_has_five_seconds_to_stop_and_a_supervisor_all_the_time_it_needs() -> None:
    assert ChildSpec("child", KIND).shutdown == 5.0
    assert ChildSpec("child", KIND, type="supervisor").shutdown == "infinity"
    assert ChildSpec("child", KIND, type="supervisor", shutdown=1.0).shutdown == 1.0


def test_a_spec_crosses_processes_unchanged() -> None:
    spec = ChildSpec("child", KIND, "transient", 2.0, 9.0, "worker", True, (1, "x"), False, 3.0, 64)
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"strategy": "all_for_one"}, "strategy"),
        ({"strategy": None}, "strategy"),
        ({"intensity": -1}, "intensity"),
        ({"intensity": 1.0}, "intensity"),
        ({"intensity": True}, "intensity"),
        ({"intensity": 10_001}, "intensity"),
        ({"period_s": 0}, "period_s"),
        ({"period_s": float("nan")}, "period_s"),
        ({"period_s": 1e6}, "period_s"),
        ({"auto_shutdown": "always"}, "auto_shutdown"),
    ],
)
def test_a_wrong_flag_is_named(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidChildSpec, match=f"supervisor flags: {wrong} is wrong") as caught:
        SupervisorFlags(**fields)
    assert caught.value.hint and repr(fields[wrong]) in caught.value.asked


@pytest.mark.parametrize("count", [0, 2])
def test_a_dynamic_supervisor_has_exactly_one_spec(count: int) -> None:
    specs = [ChildSpec(f"c{n}", KIND) for n in range(count)]
    with pytest.raises(InvalidChildSpec, match="from one spec") as caught:
        check_supervisor(SupervisorFlags("simple_one_for_one"), specs)
    assert caught.value.found == f"{count} specs"
    assert check_supervisor(SupervisorFlags("one_for_one"), specs) == tuple(specs)


def test_a_significant_child_needs_a_supervisor_that_shuts_itself_down() -> None:
    spec = ChildSpec("child", KIND, "transient", significant=True)
    with pytest.raises(InvalidChildSpec, match="significant is wrong"):
        check_supervisor(SupervisorFlags(), [spec])
    check_significance(SupervisorFlags(auto_shutdown="any_significant"), spec)
    assert check_supervisor(SupervisorFlags(auto_shutdown="all_significant"), [spec]) == (spec,)


def test_flags_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidChildSpec, match="SupervisorFlags"):
        check_supervisor("one_for_one", [])  # type: ignore[arg-type]


def test_a_class_names_its_kind_unless_no_new_process_could_find_it() -> None:
    assert kind_of(ChildSpec) == "actorgrid.supervisors.child:ChildSpec"

    class Inside:
        pass

    with pytest.raises(InvalidChildSpec, match="top level"):
        kind_of(Inside)
