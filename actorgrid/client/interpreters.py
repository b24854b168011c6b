"""Which interpreter of its process a client is made in: it needs the main one."""

from __future__ import annotations

import importlib

from actorgrid.errors import NotSupported


def refuse_subinterpreters() -> None:
    """Raises NotSupported in a subinterpreter (PEP 734).

    A client has threads of its own: an isolated subinterpreter refuses to start them, and one that is not isolated ends
    the whole process when it is closed while they run.
    """
    if _is_main():
        return
    raise NotSupported(
        "a client needs the main interpreter of its process",
        asked="a client in a subinterpreter",
        found="its threads cannot be started there, or end the process with it",
        hint="make it in the main interpreter, whose threads may share it, or in a process of its own",
    )


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # since 3.13, and before
        try:
            them = importlib.import_module(name)
        except ImportError:
            continue
        return bool(them.get_current() == them.get_main())
    return True  # a Python without them
