"""The C form of a binding's structures and constants: what a stub driver is compiled against.

``python layout.py MODULE [LIBRARY]`` writes a header to standard output. The layouts come from the very binding that
will call the stub, so they are those of its version. *LIBRARY* is loaded first, for bindings that look for it at
import.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType
from typing import Any

KEYWORDS = frozenset({"default", "register", "short", "long", "int", "double", "float", "switch", "auto", "volatile"})
SCALARS = {
    "c": "char", "b": "signed char", "B": "unsigned char", "?": "unsigned char", "h": "short", "H": "unsigned short",
    "i": "int", "I": "unsigned int", "l": "long", "L": "unsigned long", "q": "long long", "Q": "unsigned long long",
    "f": "float", "d": "double", "g": "long double",
}  # fmt: skip


class Header:
    """Collects typedefs, each after what it is made of."""

    def __init__(self) -> None:
        self.lines = ["/* Generated from a binding by layout.py. */", "#pragma once"]
        self._named: dict[type, str] = {}

    def declare(self, of: Any, name: str) -> str:
        """A declaration of *name* with that ctypes type."""
        if issubclass(of, ctypes.Array):
            return self.declare(of._type_, f"{name}[{of._length_}]")
        if issubclass(of, ctypes.Structure | ctypes.Union):
            return f"{self.add(of)} {name}"
        code = getattr(of, "_type_", None)
        if isinstance(code, str) and code in SCALARS:
            return f"{SCALARS[code]} {name}"
        return f"void *{name}"  # a pointer of any kind, or a function

    def add(self, of: Any) -> str:
        """Write the typedef of a structure or union, once; its name."""
        if of in self._named:
            return self._named[of]
        name = of.__name__.removeprefix("struct_").removeprefix("union_")
        while name in self._named.values():
            name += "_"
        self._named[of] = name
        kind = "union" if issubclass(of, ctypes.Union) else "struct"
        body = []
        for field, kind_of, *width in getattr(of, "_fields_", ()):
            plain = f"{field}_" if field in KEYWORDS else field
            body.append(f"    {self.declare(kind_of, plain)}{f' : {width[0]}' if width else ''};")
        packed = f" __attribute__((packed, aligned({of._pack_})))" if getattr(of, "_pack_", 0) else ""
        self.lines += [f"typedef {kind}{packed} {{", *body, f"}} {name};"]
        if body:
            self.lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(of)}, "{name}");')
        return name

    def add_module(self, module: ModuleType) -> None:
        """Write all structures and whole-number constants of *module*."""
        for found in list(vars(module).values()):
            shaped = isinstance(found, type) and issubclass(found, ctypes.Structure | ctypes.Union)
            if shaped and found.__module__ == module.__name__ and hasattr(found, "_fields_"):
                self.add(found)
        for name, value in vars(module).items():
            if (name.isupper() or name.startswith("nvmlEvent")) and type(value) is int and abs(value) < 2**63:
                self.lines.append(f"#define {name} {value}{'LL' if abs(value) >= 2**31 else ''}")


if __name__ == "__main__":
    asked, *libraries = sys.argv[1:]
    for library in libraries:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    header = Header()
    header.add_module(importlib.import_module(asked))
    print("\n".join(header.lines))
