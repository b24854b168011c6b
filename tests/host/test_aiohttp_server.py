"""aiohttp in an agent: its server alone, and all of it for whoever asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOAD = "import sys; from actorgrid.actors.host.aiohttp_server import load_server; load_server()\n"


def outcome(script: str, *folders: Path) -> str:
    path = f"import sys; sys.path[:0] = {[str(folder) for folder in folders]!r}\n"
    done = subprocess.run([sys.executable, "-c", path + LOAD + script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_server_comes_without_the_client() -> None:
    said = outcome("from aiohttp import web; print(web.Application, 'aiohttp.client' in sys.modules)")
    assert said == "<class 'aiohttp.web_app.Application'> False"


def test_who_asks_for_the_client_gets_it() -> None:
    script = "import aiohttp; print(aiohttp.ClientSession, aiohttp.__version__ == aiohttp.http.__version__)"
    assert outcome(script) == "<class 'aiohttp.client.ClientSession'> True"


def test_what_is_not_in_it_is_an_attribute_error_as_ever() -> None:
    script = "import aiohttp; print(hasattr(aiohttp, 'no_such_thing'), hasattr(aiohttp, '__no_such_thing__'))"
    assert outcome(script) == "False False"


def test_an_aiohttp_whose_server_needs_the_whole_package_is_loaded_whole(tmp_path: Path) -> None:
    package = tmp_path / "aiohttp"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '99'\nfrom .web import served\nsetting = 1\n")
    (package / "web.py").write_text("from . import base\nserved = base.needs\n")
    (package / "base.py").write_text(
        "import aiohttp\nif not hasattr(aiohttp, '__file_was_run__') and not aiohttp.__version__ == '99':\n"
        "    raise ImportError('run the package first')\nneeds = 7\n"
    )
    script = "import aiohttp; print(aiohttp.web.served, aiohttp.setting, aiohttp.__version__)"
    assert outcome(script, tmp_path) == "7 1 99"
