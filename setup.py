"""Compile the hot path. Everything declarative lives in pyproject.toml."""

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PROFILE = os.environ.get("ACTORGRID_PROFILE") == "1"
# What the machine's owner or a test says comes last on the command line, and so wins (tests/sanitize.py says -g).
SAID = os.environ.get("CFLAGS", "").split()
# More at once than there are kernels of some size gains nothing.
AT_ONCE = min(4, os.cpu_count() or 1)


def kernels() -> list[Extension]:
    """Cythonised kernels, or none when a pure-Python build was asked for."""
    if os.environ.get("ACTORGRID_PURE_PYTHON") == "1":
        return []

    from Cython.Build import cythonize

    extensions = cythonize(
        # Sources go through actorgrid/hotpath (a link to hotpath/), so that Cython sees the
        # package it is compiling and `cimport actorgrid.hotpath.x` finds its .pxd.
        [
            Extension("actorgrid.hotpath.*", ["actorgrid/hotpath/*.pyx"]),
            Extension("actorgrid.device_memory.torch_entry", ["actorgrid/device_memory/torch_entry.pyx"]),
        ],
        nthreads=AT_ONCE if AT_ONCE > 1 else 0,
        compiler_directives={
            "language_level": "3str",
            "boundscheck": PROFILE,
            "wraparound": False,
            "embedsignature": True,
            "linetrace": PROFILE,
        },
    )
    for extension in extensions:
        # Without a compiler the build goes on, and actorgrid.hotpath uses its reference twins.
        # Release wheels set ACTORGRID_REQUIRE_COMPILED=1 and fail instead.
        extension.optional = os.environ.get("ACTORGRID_REQUIRE_COMPILED") != "1"
        # -O3 makes a placement 7 per cent faster, all of it in the table of scores; elsewhere it only costs half as
        # much compiling again. Debugging information is a fifth of the compiling and most of the file.
        level = "-O3" if extension.name == "actorgrid.hotpath.score_table" else "-O2"
        extension.extra_compile_args = [level, "-g0", *SAID]
        extension.depends = [*extension.depends, "setup.py"]  # other flags make other kernels
        if sys.platform == "linux" and not SAID:
            extension.extra_link_args = ["-Wl,--strip-all"]
    return extensions


class Build(build_ext):
    """Several kernels at a time, none of which looks for libraries where this Python lies."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = AT_ONCE

    def build_extensions(self) -> None:
        # A Python that was built with a path of its own for libraries hands it to all that it links: a wheel
        # would carry the builder's folders as RUNPATH. The kernels need nothing but the C library.
        linker = self.compiler.linker_so
        self.compiler.set_executable("linker_so", [part for part in linker if not part.startswith("-Wl,-rpath")])
        super().build_extensions()


if __name__ == "__main__":  # translating in parallel may import this file again
    setup(ext_modules=kernels(), cmdclass={"build_ext": Build})
