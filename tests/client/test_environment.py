"""What users name as the Python environment of work travels as one text, and what would not travel is refused."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from pathlib import Path

import pytest

import actorgrid
from actorgrid.client import environment as environments
from actorgrid.client.environment import PYTHON, Environment, requirements_text
from actorgrid.client.options import options_of
from actorgrid.errors import BadRequest
from tests.wheels import make_wheel


def test_a_requirements_file_travels_with_what_it_includes_and_without_comments(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "# ours\n-r more/base.txt\nsix==1.16 \\\n  --hash=sha256:aa  # pinned\n-c limits.txt\n--find-links wheels\n"
    )
    (tmp_path / "more" / "base.txt").write_text("numpy>=2 ; python_version > '3'\n-f ../shared\n")
    (tmp_path / "limits.txt").write_text("numpy<3\n")
    text = requirements_text(str(tmp_path / "requirements.txt"))
    assert text.splitlines() == [
        "numpy>=2 ; python_version > '3'",
        f"-f {tmp_path}/shared",
        "six==1.16    --hash=sha256:aa",
        f"--find-links {tmp_path}/wheels",
        "numpy<3",
    ]


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"requirements.txt": "-r requirements.txt"}, "include each other"),
        ({"requirements.txt": "-r gone.txt"}, "cannot be read"),
        ({"requirements.txt": "-e ."}, "of this machine"),
        ({"requirements.txt": "./wheels/a-1-py3-none-any.whl"}, "of this machine"),
        ({"requirements.txt": "a @ file:///tmp/a.whl"}, "of this machine"),
        ({"requirements.txt": "six", "c.txt": "numpy<2"}, None),
        ({"requirements.txt": "six\n-c c.txt", "c.txt": "numpy<2"}, "not required by name"),
    ],
)
def test_what_would_not_travel_is_refused_when_it_is_read(
    tmp_path: Path, files: dict[str, str], match: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if match is None:
        assert requirements_text(str(tmp_path / "requirements.txt")) == "six\n"
        return
    with pytest.raises(BadRequest, match=match):
        requirements_text(str(tmp_path / "requirements.txt"))


def test_a_lock_of_uv_travels_as_what_uv_exports_of_it(tmp_path: Path) -> None:
    index = tmp_path / "index"
    make_wheel(index, "of_folder", "1.5", "", requires="other_one")
    make_wheel(index, "other_one", "2", "")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["of_folder"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{index}"]\n'
    )
    uv = environments._uv()
    assert uv is not None, "the tests' environment has it"
    subprocess.run([uv, "lock", "--quiet", "--offline"], cwd=project, check=True)
    for named in (project, project / "uv.lock", project / "pyproject.toml"):
        lines = requirements_text(str(named)).splitlines()
        assert f"--find-links {index}" in lines
        found = {line.split("==")[0] for line in lines if "==" in line}
        assert found == {"of-folder", "other-one"} and not any("mine" in line for line in lines)


def test_a_lock_of_uv_without_a_uv_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv.lock").write_text("version = 1\n")
    monkeypatch.setattr(environments, "_uv", lambda: None)
    with pytest.raises(BadRequest, match="uv is needed"):
        requirements_text(str(tmp_path / "uv.lock"))
    with pytest.raises(BadRequest, match="no lock"):
        requirements_text(str(tmp_path / "gone" / "uv.lock"))
    if shutil.which("true"):
        monkeypatch.setattr(environments, "_uv", lambda: "/bin/false")
        with pytest.raises(BadRequest, match="cannot export"):
            requirements_text(str(tmp_path / "uv.lock"))


def test_env_is_variables_or_an_environment_and_python_alone_is_one_too() -> None:
    assert options_of({"env": {"A": "1"}}).environment is None
    listed = options_of({"env": ["six"], "python": "3.12"})
    assert listed.environment is not None and listed.environment.spec().requirements == "six\n"
    assert listed.environment.spec().python == "3.12"
    both = options_of({"env": Environment(["six"], variables={"A": "1"})})
    assert both.shape.env == (("A", "1"),) and both.job_request()["env"] == {"A": "1"}
    assert "environment" not in both.job_request() and "python" not in both.job_request()
    alone = options_of({"python": "/opt/python/bin/python"}).environment
    assert alone is not None and not alone.spec().to_be_built
    assert options_of({"env": {"A": "1"}, "python": "3.12"}).variables == {"A": "1"}
    # Functions need this program's version, commands take the host's.
    assert Environment().spec().python == PYTHON and Environment().spec(for_functions=False).python == ""


@pytest.mark.parametrize(
    "wrong",
    [{"env": 7}, {"env": ""}, {"env": ["a\nb"]}, {"env": [1]}, {"python": "2.7"}, {"python": "3.9"}, {"python": "py"}],
)
def test_what_is_no_environment_is_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        options_of(wrong)


def test_equal_environments_share_workers_and_others_do_not() -> None:
    first, same, other = (options_of({"env": [name]}).shape for name in ("six", "six", "attrs"))
    assert first == same and hash(first) == hash(same) and first != other
    changed = options_of({"env": Environment(["six"])}).with_variables(A="1")
    assert changed.shape != first and changed.shape.env == (("A", "1"),)


def test_a_file_is_read_at_the_first_need_and_goes_with_what_is_pickled(tmp_path: Path) -> None:
    made = actorgrid.Environment(tmp_path / "requirements.txt")  # a module with a @task may be imported elsewhere
    with pytest.raises(BadRequest):
        made.spec()
    (tmp_path / "requirements.txt").write_text("six\n")
    assert made.spec().requirements == "six\n"
    (tmp_path / "requirements.txt").unlink()
    assert pickle.loads(pickle.dumps(made)).spec() == made.spec()
