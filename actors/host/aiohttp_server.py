"""The server of aiohttp without its client: a host's processes answer over HTTP and ask nobody.

``import aiohttp`` loads the client with all that goes with it (connector, resolver, cookies, digest, tracing): 3.9 MB
and 50 ms of each start. The package is put where imports look for it without being run; its parts then load what they
need themselves, and the rest is there for whoever asks for it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from typing import Any

PACKAGE = "aiohttp"
_SERVER = "aiohttp.web"


def load_server() -> None:
    """Load ``aiohttp.web``; where it needs more of aiohttp than today's versions do, all of aiohttp."""
    if PACKAGE not in sys.modules and not _put_in_place():
        return
    try:
        importlib.import_module(_SERVER)
    except (ImportError, AttributeError):
        for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
            del sys.modules[name]
        importlib.import_module(_SERVER)


def _put_in_place() -> bool:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.loader is None:
        return False
    package = importlib.util.module_from_spec(spec)
    package.__version__ = importlib.metadata.version(PACKAGE)  # type: ignore[attr-defined]  # its parts ask for this
    loader = spec.loader

    def load_rest(name: str) -> Any:
        # ``from aiohttp import web`` asks the package first, and loads the part when it says that it has none.
        if name.startswith("__") or importlib.util.find_spec(f"{PACKAGE}.{name}") is not None:
            raise AttributeError(f"module {PACKAGE!r} has no attribute {name!r}")
        del package.__getattr__
        loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = load_rest  # type: ignore[method-assign]
    sys.modules[PACKAGE] = package
    return True
