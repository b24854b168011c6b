"""The command that serves a class."""

import pytest

from actorgrid.demo.house_model.service import HouseModel
from actorgrid.errors import NotAService
from actorgrid.serving.class_command import class_command, class_protocol, class_target


def test_a_class_is_named_by_its_module() -> None:
    assert class_command(HouseModel) == [
        *("{python}", "-m", "actorgrid.serving", "actorgrid.demo.house_model.service:HouseModel", "--port", "{port}")
    ]
    assert class_command("a.b:C", models=("x", "y"), port=8000)[3:] == [
        *("a.b:C", "--port", "8000", "--model", "x", "--model", "y")
    ]


def test_what_another_process_could_not_import_is_refused() -> None:
    class Local:
        pass

    in_main = type("InMain", (), {"__module__": "__main__"})
    replaced = type("HouseModel", (), {"__module__": HouseModel.__module__})
    for cls, why in ((Local, "within a function"), (in_main, "in the program"), (replaced, "no longer")):
        with pytest.raises(NotAService, match=why):
            class_target(cls)


def test_how_a_class_is_asked_follows_from_its_methods() -> None:
    class Plain:
        def call(self) -> None: ...

    assert (class_protocol(HouseModel), class_protocol(Plain)) == ("openai", "http")
    with pytest.raises(NotAService):
        class_protocol(type("Nothing", (), {}))
