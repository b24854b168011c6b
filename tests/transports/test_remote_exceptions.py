"""Exceptions that cross from a worker to a client: caught by their own type, whatever their constructors want."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.work.function_call import describe_failure
from actorgrid.errors import TaskFailed, WorkerLost, error_from_dict
from actorgrid.pickle_blame import blame
from actorgrid.transports.remote_exceptions import RemoteTraceback, raised_by_task


class Odd(Exception):
    """Its constructor takes what its arguments do not hold."""

    def __init__(self, number: int, *, colour: str) -> None:
        super().__init__(f"{number} is {colour}")
        self.number = number
        self.message = ["not a text"]
        self.code = 17


class Slotted(ValueError):
    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def __str__(self) -> str:
        return f"at {self.place}"


class Holding(Exception):
    def __init__(self, text: str, lock: Any) -> None:
        super().__init__(text, lock)
        self.lock = lock
        self.text = text


class NoHeirs(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses, please")


class OfDisk(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(28, "full", path)


def crossed(raises: Callable[[], Any]) -> TaskFailed:
    """What a client raises for what the call raised on a worker."""
    try:
        raises()
    except BaseException as error:  # noqa: BLE001 - as a worker does
        named, exception = describe_failure(error)
    wire = json.loads(json.dumps(named.to_dict()))
    made = raised_by_task(error_from_dict(wire), exception)
    assert isinstance(made, TaskFailed)
    return made


def raising(error: BaseException, cause: BaseException | None = None) -> Callable[[], Any]:
    def raises() -> None:
        if cause is not None:
            raise error from cause
        raise error

    return raises


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        ZeroDivisionError("division by zero"),
        FileNotFoundError(2, "No such file", "a.txt"),
        OfDisk("/tmp/x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        UnicodeEncodeError("ascii", "é", 0, 1, "not in range"),
        SyntaxError("bad", ("f.py", 3, 4, "x = (", 3, 6)),
        ModuleNotFoundError("no x", name="x", path="/x"),
        TimeoutError("too late"),
        subprocess.CalledProcessError(3, ["x"], b"out", b"err"),
        Odd(3, colour="red"),
        Slotted(5),
        WorkerLost("gone", found="w", signal=9),
        ExceptionGroup("several", [KeyError("a"), Odd(1, colour="blue"), ExceptionGroup("inner", [Slotted(1)])]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_is_caught_by_its_own_type_and_by_task_failed(error: Exception) -> None:
    kind, text, args = type(error), str(error), error.args
    made = crossed(raising(error))
    with pytest.raises(kind):
        raise made
    assert isinstance(made, TaskFailed) and type(made).__name__ == kind.__name__
    assert str(made) == text
    if not isinstance(error, ExceptionGroup):
        assert made.args == args
    for name, value in vars(error).items():
        assert getattr(made, name) == value
    assert "in raises" in made.remote_traceback
    assert isinstance(made.__cause__, RemoteTraceback) and "in raises" in str(made.__cause__)
    assert made.to_dict()["code"] == "TaskFailed" and json.dumps(made.to_dict())


def test_fields_of_builtin_classes_and_slots_come_along() -> None:
    disk: Any = crossed(raising(OfDisk("/tmp/x")))
    assert (disk.errno, disk.filename) == (28, "/tmp/x")
    decode: Any = crossed(raising(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")))
    assert (decode.encoding, decode.object, decode.start, decode.end) == ("utf-8", b"\xff", 0, 1)
    syntax: Any = crossed(raising(SyntaxError("bad", ("f.py", 3, 4, "x = (", 3, 6))))
    assert (syntax.filename, syntax.lineno, syntax.end_offset) == ("f.py", 3, 6)
    missing: Any = crossed(raising(ModuleNotFoundError("no x", name="x", path="/x")))
    assert (missing.name, missing.path) == ("x", "/x")
    assert "install 'x'" in missing.hint
    slotted: Any = crossed(raising(Slotted(5)))
    assert slotted.place == 5


def test_the_attributes_of_the_users_class_go_before_ours() -> None:
    made: Any = crossed(raising(Odd(3, colour="red")))
    assert (made.code, made.message, made.number) == (17, ["not a text"], 3)
    lost: Any = crossed(raising(WorkerLost("gone", found="w", signal=9)))
    assert (lost.message, lost.found, lost.details, lost.code) == ("gone", "w", {"signal": 9}, "WorkerLost")


def test_a_group_is_taken_apart_by_the_types_inside() -> None:
    group = ExceptionGroup("several", [KeyError("a"), Odd(1, colour="blue")])
    keys: list[BaseException] = []
    odd: list[BaseException] = []
    try:
        raise crossed(raising(group))
    except* KeyError as found:
        keys.extend(found.exceptions)
    except* Odd as found:
        odd.extend(found.exceptions)
    assert [error.args for error in keys] == [("a",)]
    assert [error.number for error in odd if isinstance(error, Odd)] == [1]


def test_notes_and_causes_come_along_and_the_last_cause_is_the_workers_traceback() -> None:
    error = KeyError("x")
    error.add_note("while looking it up")
    inner = Odd(1, colour="red")
    inner.__cause__ = OfDisk("/tmp/x")
    made = crossed(raising(error, inner))
    assert made.__notes__ == ["while looking it up"]
    assert isinstance(made.__cause__, Odd) and made.__cause__.number == 1
    assert isinstance(made.__cause__.__cause__, OfDisk)
    assert isinstance(made.__cause__.__cause__.__cause__, RemoteTraceback)
    shown = "".join(traceback.format_exception(made))
    assert "while looking it up" in shown and shown.count("in raises") == 1
    assert shown.rstrip().endswith("while looking it up") and "KeyError: 'x'" in shown


def test_what_was_being_handled_comes_along_as_context() -> None:
    def raises() -> None:
        try:
            raise ValueError("first")
        except ValueError:
            raise KeyError("second")  # noqa: B904 - the subject

    made = crossed(raises)
    assert isinstance(made.__context__, ValueError)
    assert isinstance(made.__cause__, RemoteTraceback)


def test_an_attribute_that_cannot_be_pickled_is_left_behind_and_said() -> None:
    made: Any = crossed(raising(Holding("busy", threading.Lock())))
    with pytest.raises(Holding):
        raise made
    assert made.text == "busy" and not hasattr(made, "lock")
    assert made.args[0] == "busy" and "lock" in made.args[1]
    assert any(text.startswith("lock: TypeError") for text in made.details["left_behind"])
    assert "left behind on the worker: argument 1: TypeError" in str(made.__cause__)


def test_a_text_is_not_looked_into() -> None:
    tried: list[Any] = []
    found = blame("x" * 100, lambda part: bool(tried.append(part)))
    assert (found.path, found.chain, tried) == ("", ("x" * 100,), [])


def test_what_is_too_large_is_left_behind_too() -> None:
    made: Any = crossed(raising(Holding("big", "x" * 2_000_000)))
    assert made.text == "big" and not hasattr(made, "lock")
    assert "bytes are too many" in str(made.details["left_behind"])


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(4)])
def test_what_would_mean_something_else_here_is_only_the_cause(error: BaseException) -> None:
    made = crossed(raising(error))
    assert type(made) is TaskFailed
    assert type(made.__cause__) is type(error)
    assert "in raises" in str(made)


def test_a_class_that_takes_no_subclasses_is_only_the_cause_and_the_error_says_why() -> None:
    made = crossed(raising(NoHeirs("x")))
    assert type(made) is TaskFailed
    assert isinstance(made.__cause__, NoHeirs)
    assert "NoHeirs cannot be raised together with TaskFailed: no subclasses, please" in made.found


def test_a_class_that_is_not_here_is_named() -> None:
    failure = TaskFailed("GoneError: x", traceback="Traceback ...")
    made = raised_by_task(failure, b"\x80\x05cno_such_module\nGoneError\n.")
    assert made is failure
    assert "cannot be rebuilt here: ModuleNotFoundError" in made.found


def test_a_failure_is_pickled_and_copied_and_goes_through_a_task_again() -> None:
    made: Any = crossed(raising(Odd(3, colour="red")))
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert isinstance(again, Odd) and isinstance(again, TaskFailed)
        assert again.number == 3 and again.remote_traceback == made.remote_traceback
    outer: Any = crossed(raising(made))
    assert isinstance(outer, Odd) and outer.number == 3
    shown = str(outer.__cause__)
    assert "RemoteTraceback" in shown and shown.count("in raises") == 2
    nested = crossed(raising(TaskFailed("it failed", traceback="Traceback inside")))
    assert type(nested) is TaskFailed and type(nested.__cause__) is TaskFailed


def test_one_class_is_made_for_each_class_raised() -> None:
    assert type(crossed(raising(KeyError(1)))) is type(crossed(raising(KeyError(2))))
