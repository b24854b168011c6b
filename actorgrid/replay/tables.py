"""Reads nodes and tasks from CSV files, plain or packed (.gz, .xz), by a map from their columns to our fields.

A file is read once, from top to bottom; ROWS_MAX rows at most. Every error names the file, the line, the column, what
was found there and what to try.
"""

from __future__ import annotations

import csv
import gzip
import lzma
import math
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TextIO

from actorgrid.errors import BadRequest
from actorgrid.hotpath.records import MAX_GANG, MAX_GPUS_PER_NODE, WHOLE_GPU_MILLI

from .throughput import STEPS_PER_S
from .workload import TraceNode, TraceTask

ROWS_MAX = 5_000_000
COLUMN_SEEN_MAX = 12
NODE_FIELDS = (
    "name", "cpu_milli", "cpus", "memory_mib", "memory_gib", "gpu_count", "gpu_model", "gpu_memory_mib",
    "gpu_memory_gib", "rack",
)  # fmt: skip
TASK_FIELDS = (
    "id", "cpu_milli", "cpus", "memory_mib", "memory_gib", "gpu_count", "gpu_milli", "gpus", "gpu_memory_mib",
    "gpu_memory_gib", "gpu_models", "gang", "submit_s", "submit_ms", "submit_min", "submit_h", "submit_at",
    "duration_s", "duration_ms", "duration_min", "duration_h", "end_s", "end_ms", "end_min", "end_h", "end_at",
    "deadline_s", "deadline_ms", "deadline_min", "deadline_h", "deadline_at", "allowed_s", "allowed_min", "allowed_h",
    "deadline_kind", "tenant", "priority", "steps", "model_type",
)  # fmt: skip
ALIASES = {
    "sn": "name",
    "gpu": "gpu_count",
    "model": "gpu_model",
    "num_gpu": "gpu_count",
    "gpu_spec": "gpu_models",
    "creation_time": "submit_s",
    "deletion_time": "end_s",
}
"""Headings of the openb lists, understood without a map."""
SECONDS = {"s": 1.0, "ms": 0.001, "min": 60.0, "h": 3600.0}
KINDS = {"strict": "strict", "soft": "soft", "best": "", "none": "", "": ""}


@dataclass(frozen=True, slots=True)
class Columns:
    """Which of our fields each column of a file is; columns that are not named are left alone."""

    field_of: Mapping[str, str]


def parse_map(pairs: Sequence[str]) -> dict[str, str]:
    """``COLUMN=FIELD`` texts as a mapping. Raises BadRequest for one that is not such, or for an unknown field."""
    found: dict[str, str] = {}
    for pair in pairs:
        column, sign, field = pair.rpartition("=")
        if not sign or not column:
            raise BadRequest(
                f"{pair!r} does not map a column",
                asked=pair,
                hint="write --map COLUMN=FIELD, as in --map gpus=gpu_count",
            )
        if field not in NODE_FIELDS and field not in TASK_FIELDS:
            raise BadRequest(
                f"there is no field {field!r}",
                asked=pair,
                hint=f"of nodes: {', '.join(NODE_FIELDS)}; of tasks: {', '.join(TASK_FIELDS)}",
            )
        found[column] = field
    return found


def read_nodes(path: Path, column_map: Mapping[str, str] | None = None) -> list[TraceNode]:
    """The nodes of a CSV file, in its order. Raises BadRequest."""
    nodes: list[TraceNode] = []
    names: dict[str, int] = {}
    with closing(_rows(path, NODE_FIELDS, column_map or {}, ("gpu_count",))) as rows:
        for row in rows:
            node = _node(row, len(nodes))
            if node.name in names:
                what = f"node {node.name!r} is on line {names[node.name]} too"
                row.refuse("name", what, "give each node its own name")
            names[node.name] = row.line
            nodes.append(node)
    if not nodes:
        raise BadRequest(f"{path} lists no nodes", found="0 rows", hint="a heading and one line per node")
    return nodes


def read_tasks(path: Path, column_map: Mapping[str, str] | None = None) -> list[TraceTask]:
    """The tasks of a CSV file, by arrival where the file tells it, else in its order. Raises BadRequest."""
    with closing(_rows(path, TASK_FIELDS, column_map or {}, ("gpu_count", "gpus"))) as rows:
        tasks = [_task(row, number) for number, row in enumerate(rows)]
    if not tasks:
        raise BadRequest(f"{path} lists no tasks", found="0 rows", hint="a heading and one line per task")
    return sorted(tasks, key=lambda task: task.submit_s or 0.0)


class _Row:
    """One line: its fields as text, and the way to say what is wrong with one."""

    def __init__(self, path: Path, line: int, fields: Mapping[str, str], column_of: Mapping[str, str]) -> None:
        self.path = path
        self.line = line
        self.fields = fields
        self.column_of = column_of

    def refuse(self, field: str, what: str, hint: str) -> NoReturn:
        column = self.column_of.get(field, field)
        raise BadRequest(
            f"{self.path}, line {self.line}, column {column!r}: {what}",
            asked=f"{field} from column {column!r}",
            found=repr(self.fields.get(field, "")),
            hint=hint,
            file=str(self.path),
            line=self.line,
            column=column,
        )

    def text(self, field: str) -> str:
        return self.fields.get(field, "")

    def number(self, field: str) -> float | None:
        """A number of zero or more, or ``None`` where the cell is empty or the column is not there."""
        text = self.fields.get(field, "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            self.refuse(field, "not a number", "write digits with a point, or map another column")
        if not math.isfinite(value) or value < 0:
            self.refuse(field, "not an amount", "amounts and times are finite and zero or more")
        return value

    def whole(self, field: str, largest: int, missing: int = 0, smallest: int = 0) -> int:
        value = self.number(field)
        if value is None:
            return missing
        if value != int(value) or not smallest <= value <= largest:
            self.refuse(
                field, f"not a whole number from {smallest} to {largest}", "mend the line, or map another column"
            )
        return int(value)

    def amount(self, *choices: tuple[str, float]) -> int:
        """The first of *choices* (field, factor) that has a value, times its factor, rounded."""
        for field, factor in choices:
            value = self.number(field)
            if value is not None:
                if value * factor > 1 << 60:
                    self.refuse(field, "too large", "check the unit of the column")
                return round(value * factor)
        return 0

    def seconds(self, what: str) -> float | None:
        """A time told in any unit: ``{what}_s``, ``_ms``, ``_min``, ``_h``, or ``_at`` as a date."""
        for unit, factor in SECONDS.items():
            value = self.number(f"{what}_{unit}")
            if value is not None:
                return value * factor
        text = self.fields.get(f"{what}_at", "")
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.refuse(f"{what}_at", "not a date and time", "write ISO 8601, as in 2023-05-01T12:00:00")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _node(row: _Row, number: int) -> TraceNode:
    return TraceNode(
        name=row.text("name") or f"node-{number}",
        cpu_milli=row.amount(("cpu_milli", 1), ("cpus", 1000)),
        memory_mib=row.amount(("memory_mib", 1), ("memory_gib", 1024)),
        gpu_count=row.whole("gpu_count", MAX_GPUS_PER_NODE),
        gpu_model=row.text("gpu_model"),
        gpu_memory_mib=row.amount(("gpu_memory_mib", 1), ("gpu_memory_gib", 1024)),
        rack=row.text("rack") or None,
    )


def _task(row: _Row, number: int) -> TraceTask:
    count, milli = _gpus(row)
    submit = row.seconds("submit")
    return TraceTask(
        id=row.text("id") or str(number),
        cpu_milli=row.amount(("cpu_milli", 1), ("cpus", 1000)),
        memory_mib=row.amount(("memory_mib", 1), ("memory_gib", 1024)),
        gpu_count=count,
        gpu_milli=milli,
        gpu_memory_mib=row.amount(("gpu_memory_mib", 1), ("gpu_memory_gib", 1024)) if count else 0,
        gpu_models=tuple(sorted(filter(None, row.text("gpu_models").split("|")))) if count else (),
        gang=row.whole("gang", MAX_GANG, missing=1, smallest=1),
        submit_s=submit,
        duration_s=_duration(row, submit),
        tenant=row.text("tenant"),
        priority=row.whole("priority", 1 << 31),
        **_deadline(row, submit),
    )


def _gpus(row: _Row) -> tuple[int, int]:
    """How many devices, and thousandths of each."""
    asked = row.number("gpus")
    if asked is None:
        count = row.whole("gpu_count", 1 << 20)
        milli = row.whole("gpu_milli", WHOLE_GPU_MILLI, missing=WHOLE_GPU_MILLI)
        if count and not milli:
            row.refuse("gpu_milli", "a share of nothing", "give 1 to 1000 thousandths of a GPU")
        return count, milli if count else WHOLE_GPU_MILLI
    if asked >= 1:
        if asked != int(asked):
            row.refuse("gpus", "neither whole GPUs nor a share of one", "map gpu_count and gpu_milli apart")
        return row.whole("gpus", 1 << 20), WHOLE_GPU_MILLI
    return (1, max(1, round(asked * WHOLE_GPU_MILLI))) if asked else (0, WHOLE_GPU_MILLI)


def _duration(row: _Row, submit: float | None) -> float | None:
    told = row.seconds("duration")
    if told is not None:
        return told
    steps = row.number("steps")
    if steps is not None:
        rate = STEPS_PER_S.get(row.text("model_type"))
        if rate is None:
            row.refuse("model_type", "no throughput is known for it", f"one of: {', '.join(sorted(STEPS_PER_S))}")
        return float(math.ceil(steps / rate))
    end = row.seconds("end")
    if end is None or submit is None:
        return None
    if end < submit:
        row.refuse(_named(row, "end"), "it ends before it arrives", "swap the columns, or mend the line")
    return end - submit


def _deadline(row: _Row, submit: float | None) -> dict[str, Any]:
    kind = row.text("deadline_kind").lower()
    if kind not in KINDS:
        row.refuse("deadline_kind", "not a kind of deadline", f"one of: {', '.join(filter(None, KINDS))}")
    told = "deadline_kind" in row.column_of
    if told and not KINDS[kind]:
        return {}
    moment = row.seconds("deadline")
    allowed = row.seconds("allowed")
    if moment is None and allowed is not None and submit is not None:
        moment = submit + allowed
    return {} if moment is None else {"deadline_s": moment, "deadline_kind": KINDS[kind] or "strict"}


def _named(row: _Row, what: str) -> str:
    return next((field for field in row.column_of if field.rpartition("_")[0] == what), what)


def _rows(path: Path, fields: Sequence[str], column_map: Mapping[str, str], one_of: Sequence[str]) -> Generator[_Row]:
    with _opened(path) as stream:
        reader = csv.reader(stream)
        heading = next(reader, None)
        if not heading:
            raise BadRequest(f"{path} is empty", found="no heading", hint="the first line names the columns")
        columns = _columns(path, [name.strip() for name in heading], fields, column_map, one_of)
        column_of = {field: name for name, field in columns.field_of.items()}
        at = {
            field: heading_at
            for heading_at, name in enumerate(heading)
            if (field := columns.field_of.get(name.strip()))
        }
        for number, cells in enumerate(reader, start=1):
            if not cells:
                continue
            if number > ROWS_MAX:
                raise BadRequest(f"{path} has more than {ROWS_MAX} rows", hint="split it")
            if len(cells) < len(heading):
                raise BadRequest(
                    f"{path}, line {reader.line_num}: a column is missing",
                    asked=f"{len(heading)} columns",
                    found=f"{len(cells)} columns",
                    hint="mend the line; a quote that is not closed swallows what follows",
                )
            yield _Row(path, reader.line_num, {field: cells[index].strip() for field, index in at.items()}, column_of)


def _columns(
    path: Path, heading: Sequence[str], fields: Sequence[str], column_map: Mapping[str, str], one_of: Sequence[str]
) -> Columns:
    chosen: dict[str, str] = {}
    taken: dict[str, str] = {}
    for column, field in column_map.items():
        if field in fields and column in heading:
            _take(path, chosen, taken, column, field)
    for column in heading:
        field = column if column in fields else ALIASES.get(column, "")
        if column not in chosen and field in fields and field not in taken:
            _take(path, chosen, taken, column, field)
    if not any(field in taken for field in one_of):
        seen = ", ".join(heading[:COLUMN_SEEN_MAX]) + (", ..." if len(heading) > COLUMN_SEEN_MAX else "")
        raise BadRequest(
            f"{path} has no column for {' or '.join(one_of)}",
            asked=" or ".join(one_of),
            found=seen,
            hint=f"say which it is: --map COLUMN={one_of[0]}",
            file=str(path),
            line=1,
        )
    return Columns(chosen)


def _take(path: Path, chosen: dict[str, str], taken: dict[str, str], column: str, field: str) -> None:
    if field in taken:
        raise BadRequest(
            f"{path}: two columns are {field}", found=f"{taken[field]!r} and {column!r}", hint="map one of them only"
        )
    chosen[column] = field
    taken[field] = column


def check_map_is_used(column_map: Mapping[str, str], paths: Sequence[Path]) -> None:
    """Raises BadRequest when *column_map* names a column that none of the files has."""
    headings: list[str] = []
    for path in paths:
        with _opened(path) as stream:
            headings += [name.strip() for name in next(csv.reader(stream), [])]
    for column, field in column_map.items():
        if column not in headings:
            from difflib import get_close_matches

            close = get_close_matches(column, headings, 1)
            raise BadRequest(
                f"no file has a column {column!r}",
                asked=f"--map {column}={field}",
                found=", ".join(headings[:COLUMN_SEEN_MAX]) or "no columns",
                hint=f"did you mean {close[0]!r}?" if close else "the first line of a file names its columns",
            )


_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The file as text, unpacked by its suffix. What is wrong with it, at any line, becomes a BadRequest."""
    opener = _OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield stream
    except FileNotFoundError as error:
        raise BadRequest(f"there is no file {path}", asked=str(path), hint="check the path") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path} is not text in UTF-8", found=str(error), hint="save it as UTF-8 CSV") from error
    except csv.Error as error:
        raise BadRequest(f"{path} is not a CSV file", found=str(error), hint="commas between, quotes around") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise BadRequest(f"{path} cannot be read", found=str(error), hint="check the file") from error
