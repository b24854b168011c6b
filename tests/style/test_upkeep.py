"""What a growing tree loses first: dead code, files of one subject, sentences at the top, imports without rings."""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

from .test_names import GENERATED

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "hotpath", "transports", "supervisors", "configs", "chaos", "actorgrid")
LINES_MAX = 600
CORE_LINES_MAX = 700
"""Of a ``core.py``: one state machine, which is worse to read in two halves than long."""

# Over LINES_MAX lines, and why that is right.
LONG = {
    "actorgrid/errors.py": "every error that a user can catch, in one place: a tree to be read whole",
    "tests/gateway/conftest.py": "one stand-in for every server that the gateway asks; its parts share their records",
}
# Called by name from outside of the package, and by whom.
CALLED_FROM_OUTSIDE = {
    **dict.fromkeys(
        (
            "GatewayClient.data_received",
            "GatewayClient.eof_received",
            "ReplicaConnection.data_received",
            "FrameStream.data_received",
        ),
        "asyncio's transports",
    ),
    **dict.fromkeys(
        (
            "ReplicaConnection.on_message_begin",
            "ReplicaConnection.on_header",
            "ReplicaConnection.on_headers_complete",
            "ReplicaConnection.on_body",
            "ReplicaConnection.on_message_complete",
            "_HeadParser.on_url",
            "_HeadParser.on_header",
            "_HeadParser.on_headers_complete",
        ),
        "httptools, of its parsers' protocols",
    ),
    "AgentLog.emit": "logging",
    "_PayloadUnpickler.persistent_load": "pickle",
    "_JobPickler.persistent_id": "pickle",
    **dict.fromkeys(
        (
            "StepPickler.persistent_id",
            "_PlainPickler.persistent_id",
            "_KeyPickler.persistent_id",
            "_StepUnpickler.persistent_load",
        ),
        "pickle",
    ),
    **dict.fromkeys(("DevicePool.used_on", "use_in_torch"), "people's programs (docs/memory_pool.md)"),
    "Dag.submitted": "people's programs (docs/graphs.md)",
    "Schedule.run_now": "people's programs (docs/schedules.md)",
    "ClusterViewClient._repr_html_": "notebooks",
    "LazyFuture._repr_html_": "notebooks",
    "LocalCluster._repr_html_": "notebooks",
    "WorkerRelay.data_received": "asyncio's transports",
    "SocketChannel.data_received": "asyncio's transports",
    "Commands.list_commands": "click",
    "Commands.get_command": "click",
    "Commands.format_commands": "click",
    "SlurmCommands.list_commands": "click",
    "SlurmCommands.get_command": "click",
    "SlurmCommands.format_commands": "click",
    "Server.leave_group": "servers of people who use the actor layer by itself (docs/actors.md)",
    "GpuClusteringManager.distribute_workload": "people who pool GPUs in their own programs (docs/gpu_clustering.md)",
    "RaftCore.report_snapshot": "who owns a RaftCore, where something cannot be brought (docs/raft_core.md)",
    "decode_hard_state": "who stores or carries what a RaftCore gives out (docs/raft_core.md)",
    "encode_conf_state": "who stores or carries what a RaftCore gives out (docs/raft_core.md)",
    "decode_conf_state": "who stores or carries what a RaftCore gives out (docs/raft_core.md)",
    "encode_snapshot": "who stores or carries what a RaftCore gives out (docs/raft_core.md)",
    "decode_snapshot": "who stores or carries what a RaftCore gives out (docs/raft_core.md)",
    "FaultyNetwork.set_faults": "who plays faults between hosts (docs/peer_links.md)",
    **dict.fromkeys(("Client.semaphore", "AsyncClient.semaphore"), "people's programs (docs/locks.md)"),
    "ActorClass.get_or_create": "people's programs (docs/user_actors.md)",
    "GpuClusteringManager.select_best_device": "people who pool GPUs in their own programs (docs/gpu_clustering.md)",
    "on_enter": "state machines that people write (docs/state_machines.md)",
    "StateMachine.defer": "state machines that people write (docs/state_machines.md)",
    "StateMachine.reply_error": "state machines that people write (docs/state_machines.md)",
    **dict.fromkeys(
        (
            f"TaskBatches.{verb}"
            for verb in ("effective_n_jobs", "retrieve_result_callback", "abort_everything", "get_nested_backend")
        ),
        "joblib, of its backends",
    ),
    "CurrentTask.raise_if_cancelled": "tasks of people (docs/tasks.md)",
    **dict.fromkeys(
        ("Process.spawn_link", "Shard.run_until_idle", "Shard.run_for"),
        "light processes and programs that people write (docs/light_processes.md)",
    ),
    "DescriptorWatch": "actors that wait until a descriptor of their own takes bytes (tests/transports/mesh_actors.py)",
}
# Files whose classes fill in Thespian's: it calls their methods.
FILLS_IN_THESPIAN = {"transports/unix/thespian.py", "transports/unix/system.py"}
REGISTERING_NOTHING = {"property", "staticmethod", "classmethod", "contextmanager", "dataclass", "cache", "lru_cache"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def modules() -> list[str]:
    """The paths alone: whoever collects these tests has not to parse the package."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in paths if not path.stem.endswith(GENERATED))


@pytest.fixture(scope="module", autouse=True)
def trees_are_let_go() -> Iterator[None]:
    """They are two million objects without a cycle, that every collection here and after these would look at."""
    gc.disable()
    yield
    package.cache_clear()
    uses_of_package.cache_clear()
    gc.enable()


@cache
def package() -> dict[str, ast.Module]:
    return {path: ast.parse((ROOT / path).read_text()) for path in modules()}


REFERENCE = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?")


def mentioned(tree: ast.AST) -> Counter[str]:
    """How often each name is used: read, asked of an object, imported, or named by a string that is a reference and
    nothing else (``package.module:Class``, an attribute for ``getattr``). Not by prose, a definition or ``__all__``.
    """
    found: Counter[str] = Counter()
    for node in ast.walk(without_exports(tree)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[node.attr] += 1
        elif isinstance(node, ast.alias):
            found[node.name] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and REFERENCE.fullmatch(node.value):
            found.update(re.findall(r"\w+", node.value))
    return found


def without_exports(tree: ast.AST) -> ast.AST:
    """Without ``__all__``: it says what may be used, and uses nothing."""
    if not isinstance(tree, ast.Module):
        return tree
    exports = [line for line in tree.body if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__"]
    return ast.Module([line for line in tree.body if line not in exports], [])


def definitions(tree: ast.AST, owner: str = "") -> list[tuple[str, Definition]]:
    found: list[tuple[str, Definition]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            found.append((owner + node.name, node))
        if isinstance(node, ast.ClassDef):
            found += definitions(node, f"{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            found += definitions(node, owner)
    return found


def registered(node: Definition) -> bool:
    """Whether a decorator hands it to someone: ``@handles``, ``@command``, ``@model_validator``."""
    names = {re.split(r"[.(]", ast.unparse(each).removeprefix("functools."))[0] for each in node.decorator_list}
    return bool(names - REGISTERING_NOTHING)


def uses_in(modules: dict[str, ast.Module]) -> Counter[str]:
    uses: Counter[str] = Counter()
    for tree in modules.values():
        uses.update(mentioned(tree))
    return uses


@cache
def uses_of_package() -> Counter[str]:
    return uses_in(package()) + outside_of_python()


def unused(modules: dict[str, ast.Module], uses: Counter[str], excused: Collection[str] = ()) -> list[str]:
    dead = []
    for path, tree in modules.items():
        for name, node in definitions(tree):
            special = node.name.startswith("__") and node.name.endswith("__")
            filled_in = path in FILLS_IN_THESPIAN and "." in name
            if not (uses[node.name] or special or filled_in or name in excused or registered(node)):
                dead.append(f"{path}: {name}")
    return dead


def outside_of_python() -> Counter[str]:
    """Words of the kernels, comments left out, and of the metadata: they call what lies in Python's files."""
    files = [*(ROOT / "hotpath").glob("*.pyx"), *(ROOT / "hotpath").glob("*.pxd"), ROOT / "pyproject.toml"]
    lines = [line.split("#")[0] for path in files for line in path.read_text().splitlines()]
    return Counter(word for line in lines for word in re.findall(r"\w+", line))


def test_every_function_and_class_is_used_somewhere_in_the_package() -> None:
    assert unused(package(), uses_of_package(), CALLED_FROM_OUTSIDE) == []


def test_each_excuse_is_needed_and_the_page_it_names_tells_of_it() -> None:
    dead = {line.split(": ")[1] for line in unused(package(), uses_of_package())}
    assert set(CALLED_FROM_OUTSIDE) - dead == set(), "used by now, or gone: take it off the list"
    for name, reason in CALLED_FROM_OUTSIDE.items():
        for page in re.findall(r"\b(?:docs|tests)/[\w/.]+\.(?:md|py)", reason):
            assert re.search(rf"\b{name.split('.')[-1]}\b", (ROOT / page).read_text()), (name, page)


def test_the_check_above_finds_dead_code_and_spares_what_is_registered() -> None:
    source = """
__all__ = ["A", "exported"]
class A:
    def used(self): ...
    def dead(self): ...
    @handles(X)
    def told(self): ...
    def named(self): "how dead() goes"
    def exported(self): ...
A().used
getattr(A(), "named")
"""
    modules = {"a.py": ast.parse(source)}
    assert unused(modules, uses_in(modules)) == ["a.py: A.dead", "a.py: A.exported"]


def test_what_is_excused_still_exists() -> None:
    assert all((ROOT / path).exists() for path in (*LONG, *FILLS_IN_THESPIAN))


def test_files_stay_short_enough_for_one_subject() -> None:
    paths = [path for folder in (*FOLDERS, "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    written = [path for path in paths if not path.stem.endswith(GENERATED)]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in written}
    most = {path: CORE_LINES_MAX if Path(path).name == "core.py" else LINES_MAX for path in lengths}
    long = {path for path, lines in lengths.items() if lines > most[path]}
    assert long == set(LONG), "split it at its second subject; or take it off the list, now that it is short"


def test_every_module_says_in_a_sentence_what_it_is_for() -> None:
    first = {path: (ast.get_docstring(tree) or "").split("\n\n")[0] for path, tree in package().items()}
    sentence = re.compile(r"(?s)(?:[A-Z`\d]|agent\.log).*(?:[.!?:)]|::)")
    silent = {path: said for path, said in first.items() if not sentence.fullmatch(said) or len(said.split()) < 3}
    assert silent == {}


def imports(name: str, tree: ast.Module, known: set[str], is_package: bool) -> set[str]:
    """The modules of ours that *name* loads as it is loaded: not those within functions or for type checkers."""
    found: set[str] = set()

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = name.split(".") if is_package else name.split(".")[:-1]
                    parts = parts[: len(parts) - (node.level - 1)]
                    base = ".".join([*parts, *([node.module] if node.module else [])])
                found.update(
                    f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names
                )
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                visit(node.body + node.orelse)
            elif isinstance(node, ast.Try):
                visit(node.body + node.orelse + [line for each in node.handlers for line in each.body])

    visit(tree.body)
    return (found & known) - {name}


def ring(graph: dict[str, set[str]]) -> list[str]:
    """Modules that load each other in a ring, or nothing."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        for following in sorted(graph[name]):
            if found := search(following, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := search(name, []))), [])


def test_no_modules_import_each_other_in_a_ring() -> None:
    modules = {}
    for path, tree in package().items():
        parts = Path(path).with_suffix("").parts
        dotted = ".".join(parts if parts[0] == "actorgrid" else ("actorgrid", *parts))
        modules[dotted.removesuffix(".__init__")] = (tree, path.endswith("__init__.py"))
    known = set(modules)
    assert ring({name: imports(name, tree, known, whole) for name, (tree, whole) in modules.items()}) == []
    assert ring({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
