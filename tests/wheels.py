"""Small wheels in a folder: an index that needs no network."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, code: str, requires: str = "") -> Path:
    """A wheel of one module *name* with that *code*."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(each, text)
    return path
