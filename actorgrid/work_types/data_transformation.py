"""Tables from file to file: CSV or lines of JSON, through a list of steps. Rows flow; only sort and group hold them."""

from __future__ import annotations

import csv
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, TextIO

from pydantic import Field

from actorgrid.errors import InvalidWork

from .base import WorkArguments, WorkPlan, WorkType

Row = dict[str, Any]
Column = Annotated[str, Field(min_length=1, max_length=200)]
HELD_MAX = 10_000_000
"""Rows, or groups, that a step holds at once."""


class Select(WorkArguments):
    """Keep these columns, in this order."""

    op: Literal["select"]
    columns: list[Column] = Field(min_length=1, max_length=1_000)


class Rename(WorkArguments):
    """Call columns otherwise."""

    op: Literal["rename"]
    columns: dict[Column, Column] = Field(min_length=1, max_length=1_000, description="old name: new name")


class Where(WorkArguments):
    """Keep the rows in which a column compares so with a value; numbers compare as numbers."""

    op: Literal["where"]
    column: Column
    is_: Literal["==", "!=", "<", "<=", ">", ">=", "contains", "in"] = Field(alias="is")
    value: str | float | bool | list[str | float | bool | None] | None


class Number(WorkArguments):
    """Read columns as numbers; what is none becomes null."""

    op: Literal["number"]
    columns: list[Column] = Field(min_length=1, max_length=1_000)


class Compute(WorkArguments):
    """A further column, of two columns or a column and a number."""

    op: Literal["compute"]
    into: Column
    left: Column
    by: Literal["+", "-", "*", "/"]
    right: Column | float


class Sort(WorkArguments):
    """Put rows in order."""

    op: Literal["sort"]
    by: list[Column] = Field(min_length=1, max_length=16)
    descending: bool = False


class Limit(WorkArguments):
    """The first rows."""

    op: Literal["limit"]
    rows: int = Field(ge=0)


class Group(WorkArguments):
    """One row for each combination of values of some columns."""

    op: Literal["group"]
    by: list[Column] = Field(default_factory=list, max_length=16)
    into: dict[Column, tuple[Literal["count", "sum", "mean", "min", "max"], Column]] = Field(
        min_length=1, max_length=100, description='new column: ["sum", "old column"]'
    )


Step = Annotated[Select | Rename | Where | Number | Compute | Sort | Limit | Group, Field(discriminator="op")]


class TransformationArguments(WorkArguments):
    """Files, steps and where the result goes. Formats follow from the names: .csv, .jsonl."""

    inputs: list[Annotated[str, Field(pattern=r"\.(csv|jsonl)$", max_length=4_096)]] = Field(
        min_length=1, max_length=10_000, description="where the work runs; read one after the other"
    )
    steps: list[Step] = Field(default_factory=list, max_length=100)
    output: str = Field(pattern=r"\.(csv|jsonl)$", max_length=4_096, description="written whole, or not at all")


class DataTransformation(WorkType):
    """Transforms tables."""

    name = "data_transformation"
    summary = "CSV or JSON lines through select, where, compute, sort, group and others"
    arguments = TransformationArguments

    def plan(self, arguments: TransformationArguments) -> WorkPlan:
        """Run it where the files are: with a working directory, or on a host of one's own."""
        return WorkPlan(transform, (arguments.model_dump(by_alias=True),))


def transform(given: dict[str, Any]) -> dict[str, Any]:
    """Carry it out: ``rows_read``, ``rows_written`` and ``output``. Raises InvalidWork, which names step and row."""
    counts = {"read": 0}
    rows: Iterable[Row] = _read(given["inputs"], counts)
    for number, step in enumerate(given["steps"]):
        rows = _named(number, step["op"], _STEPS[step["op"]](rows, step))
    written = _write(given["output"], rows)
    return {"rows_read": counts["read"], "rows_written": written, "output": os.path.abspath(given["output"])}


def _named(number: int, op: str, rows: Iterator[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        what = f"there is no column {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise InvalidWork(f"steps.{number} ({op}): {what}", asked=op, found=str(error)[:200]) from error


def _read(paths: list[str], counts: dict[str, int]) -> Iterator[Row]:
    for path in paths:
        with _opened(path) as file:
            rows = csv.DictReader(file) if path.endswith(".csv") else map(json.loads, file)
            for number, row in enumerate(rows):
                if not isinstance(row, dict) or None in row:
                    raise InvalidWork(f"{path}: row {number + 1} has another shape", asked=path, found=str(row)[:200])
                counts["read"] += 1
                yield row


def _opened(path: str) -> TextIO:
    try:
        return open(path, encoding="utf-8", newline="")
    except OSError as error:
        raise InvalidWork(
            f"{path} cannot be read where this work runs: {error.strerror}",
            asked=path,
            hint="send it along (working_dir=), or name a path that its host has",
        ) from error


def _write(path: str, rows: Iterable[Row]) -> int:
    part = f"{path}.{os.getpid()}.part"
    count = 0
    try:
        with open(part, "w", encoding="utf-8", newline="") as file:
            table: Any = None
            for row in rows:
                if path.endswith(".jsonl"):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                else:
                    if table is None:
                        table = csv.DictWriter(file, list(row))
                        table.writeheader()
                    table.writerow(row)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    return count


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _select(rows: Iterable[Row], step: Row) -> Iterator[Row]:
    return ({name: row[name] for name in step["columns"]} for row in rows)


def _rename(rows: Iterable[Row], step: Row) -> Iterator[Row]:
    names = step["columns"]
    return ({names.get(name, name): value for name, value in row.items()} for row in rows)


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "contains": lambda value, part: str(part) in str(value),
    "in": lambda value, values: value in values,
}


def _where(rows: Iterable[Row], step: Row) -> Iterator[Row]:
    wanted, compare = step["value"], _COMPARE[step["is"]]
    as_number = isinstance(wanted, (int, float)) and not isinstance(wanted, bool)
    for row in rows:
        value = row[step["column"]]
        value = _number(value) if as_number and step["is"] != "contains" else value
        if value is None and step["is"] in ("<", "<=", ">", ">="):
            continue
        if compare(value, wanted):
            yield row


def _numbers(rows: Iterable[Row], step: Row) -> Iterator[Row]:
    return ({**row, **{name: _number(row[name]) for name in step["columns"]}} for row in rows)


_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def _compute(rows: Iterable[Row], step: Row) -> Iterator[Row]:
    right, work = step["right"], _ARITHMETIC[step["by"]]
    for row in rows:
        one, other = _number(row[step["left"]]), right if isinstance(right, float) else _number(row[right])
        yield {**row, step["into"]: None if one is None or other is None else work(one, other)}


def _held(rows: Iterable[Row]) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number >= HELD_MAX:
            raise ValueError(f"it holds at most {HELD_MAX} rows")
        yield row


def _sort(rows: Iterable[Row], step: Row) -> Iterator[Row]:
    # Numbers before texts before what is missing: one column may hold all three.
    def place(row: Row) -> list[tuple[int, Any]]:
        values = (row[name] for name in step["by"])
        return [(2, "") if v is None else (0, v) if isinstance(v, (int, float)) else (1, str(v)) for v in values]

    return iter(sorted(_held(rows), key=place, reverse=step["descending"]))


def _limit(rows: Iterable[Row], step: Row) -> Iterator[Row]:
    if step["rows"]:
        for number, row in enumerate(rows, 1):
            yield row
            if number == step["rows"]:
                return


_PICK: dict[str, Callable[[list[float]], float]] = {
    "count": lambda sums: int(sums[0]),
    "sum": lambda sums: sums[1],
    "mean": lambda sums: sums[1] / sums[0],
    "min": lambda sums: sums[2],
    "max": lambda sums: sums[3],
}
"""Of the count, the sum, the least and the largest value of a group."""


def _group(rows: Iterable[Row], step: Row) -> Iterator[Row]:
    found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows:
        key = tuple(row[name] for name in step["by"])
        if key not in found and len(found) >= HELD_MAX:
            raise ValueError(f"it holds at most {HELD_MAX} groups")
        sums = found.setdefault(key, {})
        for into, (how, column) in step["into"].items():
            value = 1.0 if how == "count" else _number(row[column])
            if value is None:
                continue
            known = sums.setdefault(into, [0, 0.0, value, value])
            known[0] += 1
            known[1] += value
            known[2], known[3] = min(known[2], value), max(known[3], value)
    for key, sums in found.items():
        columns = {into: _PICK[how](sums[into]) if into in sums else None for into, (how, _) in step["into"].items()}
        yield {**dict(zip(step["by"], key, strict=True)), **columns}


_STEPS: dict[str, Callable[[Iterable[Row], Row], Iterator[Row]]] = {
    "select": _select,
    "rename": _rename,
    "where": _where,
    "number": _numbers,
    "compute": _compute,
    "sort": _sort,
    "limit": _limit,
    "group": _group,
}
