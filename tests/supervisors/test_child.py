from __future__ import annotations

from typing import Any

import pytest

from actorgrid.errors import InvalidChildSpec
from actorgrid.supervisors.child import CHILDREN_MAX, ChildSpec, check_children

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
