"""Commands that are steps of a graph: the files that they find, the files that they give, and the word that they say.

What a command gives is the pack of its outputs (``actorgrid/dag/step_files.py``), which stands where a function's value
stands: in the attempt's result file, from where it is brought to those who take it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from actorgrid.actors.files.untrusted_files import open_to_read
from actorgrid.actors.ledger.graph_checks import WORD_CHARS_MAX
from actorgrid.actors.ledger.graph_records import StepResultRecord
from actorgrid.dag.step_files import pack_files, put_files
from actorgrid.digests import is_digest
from actorgrid.errors import NotARegularFile, OutputMissing

from .attempt_dir import AttemptDir, write_durably
from .collected_outputs import Collected
from .work_records import WorkSpec, WorkStatus

LINE_BYTES_MAX = 4096
"""Of the end of standard output, what is looked at for the last line."""


def put_taken_files(spec: WorkSpec) -> None:
    """Put what the step takes into the directory that it is to run in: of the same path, that of the step which stands
    later in the graph. Called in the child that becomes the command, and of one that is kept apart is so already: what
    it unpacks others made, and where it puts it, they may have put links. Raises MalformedBody, OSError,
    NotARegularFile."""
    step = spec.get("step")
    for path, offset, size in step["takes"] if step is not None else ():
        source = Path(str(path))
        with open_to_read(source.parent, source.name) as held, open(held, "rb", closefd=False) as file:
            file.seek(int(offset))
            pack = file.read(int(size))
        put_files(pack, Path(spec["cwd"]))


def with_pack(spec: WorkSpec, folder: AttemptDir, collected: Collected) -> Collected:
    """Leave the pack of what was collected as the attempt's result, where it is a step's and whole; gives what was
    collected with the digest of that, or why there is none."""
    step = spec.get("step")
    if step is None or not step["gives"] or collected.missing or collected.problem:
        return collected
    try:
        pack = pack_files(folder.outputs, step["bytes_max"])
        write_durably(folder.result, pack)
    except OutputMissing as error:
        return collected._replace(problem=f"{error.message}: {error.found}")
    except (OSError, NotARegularFile) as error:
        return collected._replace(problem=f"they could not be packed: {error}")
    return collected._replace(digest=hashlib.sha256(pack).hexdigest())


def lacking_outputs(spec: WorkSpec, status: WorkStatus) -> OutputMissing | None:
    """The error of a step that was to give files and has not."""
    step, kept = spec.get("step"), status.get("outputs")
    if step is None or not step["gives"] or (kept is not None and kept.get("digest")):
        return None
    missing = [] if kept is None else kept["missing"]
    problem = "nothing was kept" if kept is None else kept["problem"]
    return OutputMissing(
        f"the command left with status 0, and without {len(missing)} of its outputs"
        if missing
        else "the command left with status 0, but what it left cannot be given on",
        asked=", ".join(spec["outputs"]["paths"])[:500] if "outputs" in spec else "",
        found=f"not there: {', '.join(missing)}"[:500] if missing else problem,
        hint=f"they are looked for in {spec['cwd']}; actorgrid logs {spec['job_id']}",
        missing=missing[:20],
    )


def result_of_command(directory: AttemptDir, spec: WorkSpec, status: WorkStatus) -> StepResultRecord | None:
    """How a step that is a command has ended well; ``None`` for a command that is none."""
    step = spec.get("step")
    if step is None:
        return None
    took_s = max(0.0, status.get("ended_at", 0.0) - status.get("started_at", 0.0))
    found: StepResultRecord = {"ok": True, "offset": 0, "size": 0, "took_s": took_s}
    digest = status["outputs"].get("digest") if "outputs" in status else None
    if digest is not None and is_digest(digest):  # the work could write there, too
        found["size"], found["digest"] = int(status.get("result_bytes") or 0), digest
    if step["tells"] and not ("dropped" in status and status["dropped"]["stdout"]):
        word = last_line(directory.read_output("stdout", max(0, directory.output_size("stdout") - LINE_BYTES_MAX)))
        if word is not None:
            found["word"] = word
    return found


def last_line(end: bytes) -> str | None:
    """The last line of an output that is not empty, without blanks around it, of which *end* is the end. Empty: there
    is none; ``None``: it is too long for a word."""
    text = end.decode("utf-8", "replace").rstrip()
    line = text.splitlines()[-1].strip() if text else ""
    return line if len(line) <= WORD_CHARS_MAX else None
