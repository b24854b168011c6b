"""The house keeps its own rules: links, names, metadata, imports."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "hotpath", "transports", "supervisors", "configs", "chaos")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> list[str]:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    found = list(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        found += extra
    for group in groups.values():
        found += [line for line in group if isinstance(line, str)]
    return found


def distribution(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def test_metadata_names_none_of_the_three_false_friends() -> None:
    names = {distribution(line) for line in requirements()}
    assert not names & {"pyze", "level-zero", "pynvml"}
    assert "nvidia-ml-py" in names


@pytest.mark.parametrize("forbidden", ["pyze", "level_zero>=0.1", "PyNVML"])
def test_the_check_above_would_catch_each_of_them(forbidden: str) -> None:
    assert distribution(forbidden) in {"pyze", "level-zero", "pynvml"}


def test_thespian_is_pinned_exactly() -> None:
    assert "thespian==4.0.1" in PROJECT["dependencies"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_is_linked_into_the_import_root(folder: str) -> None:
    link = ROOT / "actorgrid" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder


def sources() -> list[Path]:
    found = [path for folder in (*FOLDERS, "actorgrid", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    # rglob does not walk the links in actorgrid/, so nothing is read twice.
    assert found
    return found


def test_no_file_is_named_for_having_no_subject() -> None:
    assert not [path for path in sources() if path.stem in {"util", "utils", "misc", "common", "helpers"}]


BARE_IMPORT = re.compile(rf"\b(?:from|import)\b.*(?<![.\w])(?:{'|'.join(FOLDERS)})\b")


def test_nothing_imports_a_folder_by_its_bare_name() -> None:
    wrong = []
    for path in sources():
        text = path.read_text()
        if not BARE_IMPORT.search(text):
            continue  # to parse them all takes seconds, and hardly one has such a line
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            wrong += [f"{path}: {name}" for name in names if name.split(".")[0] in FOLDERS]
    assert not wrong


def test_every_kernel_has_a_reference_twin() -> None:
    for kernel in (ROOT / "hotpath").glob("*.pyx"):
        assert (ROOT / "hotpath" / "reference" / f"{kernel.stem}.py").exists()
        assert kernel.with_suffix(".pxd").exists()


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    from actorgrid import errors

    listed = re.findall(r"^\s*[*+-] (\w+)", errors.__doc__ or "", re.MULTILINE)
    defined = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ActorGridError)
    ]
    assert sorted(listed) == sorted(defined)


def test_an_error_crosses_a_door_unchanged() -> None:
    import pickle

    from actorgrid import errors

    error = errors.TooManyGpus("too many", asked="9", found="8", hint="ask for 8", limit=8)
    for copy in (pickle.loads(pickle.dumps(error)), errors.error_from_dict(error.to_dict())):
        assert type(copy) is errors.TooManyGpus
        assert str(copy) == "too many; asked: 9; found: 8; try: ask for 8"
        assert copy.details == {"limit": 8}


def sleeps(node: ast.AST, function_depth: int = 0) -> list[int]:
    """Lines that sleep in a test itself. A function inside a test is work it sends elsewhere: that may take time."""
    found = []
    for child in ast.iter_child_nodes(node):
        inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Call) and ast.unparse(child.func) in {"time.sleep", "sleep"} and function_depth < 2:
            found.append(child.lineno)
        found += sleeps(child, function_depth + inner)
    return found


def test_tests_do_not_sleep() -> None:
    wrong = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "sleep(" in (text := path.read_text()) and (lines := sleeps(ast.parse(text)))
    }
    assert not wrong
