"""What the documents show is run: Python blocks as programs, shell blocks command by command, links followed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from actorgrid import errors
from actorgrid.cli.main import cli
from actorgrid.configs.schema import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- not run: (.+?) -->\s*$")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NEVER_ENDS = {"up": "the agent it would start runs already", "doctor": "exits with 1 on a machine with problems"}


@dataclass(frozen=True)
class Block:
    """A fenced block, and why it is not run, if so."""

    page: Path
    line: int
    language: str
    text: str
    skipped: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            before = text[: found.start()]
            marker = MARKER.search(before)
            reason = marker[1] if marker else ""
            yield Block(page, before.count("\n") + 1, found[1], found[2], reason)


ALL = list(blocks())
RUN = [block for block in ALL if not block.skipped]
ON_A_GPU = [block for block in ALL if re.fullmatch(r"needs (PyTorch and )?a GPU", block.skipped)]


def examples(language: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in RUN if block.language == language]


def environment(data_dir: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
    path = f"{Path(sys.executable).parent}:{clean.get('PATH', '')}"
    return {**clean, "ACTORGRID_DATA_DIR": str(data_dir), "PYTHONPATH": str(ROOT), "PATH": path}


def actorgrid(data_dir: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "actorgrid", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(data_dir),
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a running agent."""
    data_dir = tmp_path_factory.mktemp("docs") / "data"
    agent = subprocess.Popen(
        [sys.executable, "-m", "actorgrid", "up", "--json", "--port", "0", "--gpus", "8"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(data_dir),
    )
    assert agent.stdout is not None
    try:
        assert json.loads(agent.stdout.readline())["event"] == "ready"
        yield data_dir
    finally:
        agent.terminate()
        agent.wait(60)
        agent.stdout.close()


@pytest.mark.system
@pytest.mark.parametrize("block", examples("python"))
def test_a_python_block_runs(block: Block, host: Path, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=90, env=environment(host), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for shown in re.findall(r"print\(.*?\)\s+# (\S+)$", block.text, re.MULTILINE):
        assert shown in done.stdout, f"{block} promises {shown}"


@pytest.mark.system
@pytest.mark.parametrize("block", examples("sh"))
def test_a_shell_block_runs(block: Block, host: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n", encoding="utf-8")
    stand_in = tmp_path / "nvidia-smi"  # for machines without the vendor's own
    stand_in.write_text("#!/bin/sh\necho GPU 0\n", encoding="utf-8")
    stand_in.chmod(0o755)
    (tmp_path / "graph.yaml").write_text("steps: [{id: a, command: 'true'}, {id: b, command: 'true', after: [a]}]\n")
    submits = {
        "JOB": ("run", "--detach", "--", "sh", "-c", "echo out; sleep 1"),
        "GRAPH": ("submit", "graph.yaml"),
    }
    stands_for = {"nvidia-smi": str(stand_in)}
    for name, command in submits.items():
        if name in block.text:
            stands_for[name] = actorgrid(host, *command, cwd=tmp_path).stdout.strip()
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert Path(words[0]).name == "actorgrid", f"{block}: {line}: mark the block 'not run', with the reason"
        if words[1] in NEVER_ENDS:
            assert words[1] in cli.list_commands(click.Context(cli))
            continue
        words = [stands_for.get(word, word) for word in words[1:]]
        done = actorgrid(host, *words, cwd=tmp_path)
        assert done.returncode == 0, f"{block}: {line}: {done.stdout}{done.stderr}"


def test_blocks_are_run_or_say_why_not() -> None:
    assert {block.language for block in RUN} <= {"python", "sh", "yaml", "text", "json"}, "a fence without a language"
    elsewhere = [block for block in ALL if "tests/system/" in block.skipped]
    for block in elsewhere:
        where = re.search(r"tests/system/\w+\.py", block.skipped)
        assert where and "test_the_examples_of_the_documents_run" in (ROOT / where[0]).read_text(), str(block)
    assert len([block for block in ALL if block.skipped]) - len(elsewhere) - len(ON_A_GPU) <= 6
    assert len(RUN) >= 3


@pytest.mark.gpu
@pytest.mark.parametrize("block", ON_A_GPU, ids=str)
def test_examples_for_gpus_run(block: Block, tmp_path: Path) -> None:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU is here")
    for module in ("torch", "cuda.bindings", "cupti"):
        pytest.importorskip(module)
    subprocess.run([sys.executable, "-c", block.text], check=True, cwd=tmp_path, timeout=120)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("#"):
                there = (page.parent / target.partition("#")[0]).resolve()
                waiting.append(there / "README.md" if there.is_dir() and (there / "README.md").exists() else there)
    assert set(PAGES) <= seen


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    context = click.Context(cli)
    for name in cli.list_commands(context):
        assert re.search(rf"`{name}\b", text), f"docs/cli.md does not name {name}"
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            for inner in command.commands:
                assert re.search(rf"\b{inner}\b", text), f"docs/cli.md does not name {name} {inner}"


def test_every_setting_is_in_the_shipped_files() -> None:
    shipped = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "configs").glob("*.yaml")))
    for key in Settings().keys():  # noqa: SIM118 - a method of ours, not a mapping's
        assert re.search(rf"^[#\s]*{key.rpartition('.')[2]}:", shipped, re.MULTILINE), key


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    for key in Settings().keys():  # noqa: SIM118 - a method of ours, not a mapping's
        assert f"`{key}`" in text, f"docs/configuration.md does not name {key}"


def test_the_index_of_decisions_is_complete() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs/decisions").glob("[0-9]*.md"):
        title = page.read_text(encoding="utf-8").splitlines()[0].partition(": ")[2]
        assert f"({page.name}) | {title} |" in index, page.name


def test_the_table_of_errors_is_that_of_the_code() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    kinds: dict[tuple[int, int], set[str]] = {}  # one kind may be of two others
    waiting = [errors.ActorGridError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__ == errors.__name__:
            kinds.setdefault((kind.http_status, kind.exit_code), set()).add(kind.__name__)
        waiting += kind.__subclasses__()
    for (status, code), names in kinds.items():
        assert f"| {status} | {code} | {', '.join(f'`{name}`' for name in sorted(names))} |" in text
