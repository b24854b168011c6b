"""Compile the hot path. Everything declarative lives in pyproject.toml."""

import os

from setuptools import Extension, setup


def kernels() -> list[Extension]:
    """Cythonised kernels, or none when a pure-Python build was asked for."""
    if os.environ.get("ACTORGRID_PURE_PYTHON") == "1":
        return []

    from Cython.Build import cythonize

    profile = os.environ.get("ACTORGRID_PROFILE") == "1"
    extensions = cythonize(
        # Sources go through actorgrid/hotpath (a link to hotpath/), so that Cython sees the
        # package it is compiling and `cimport actorgrid.hotpath.x` finds its .pxd.
        [Extension("actorgrid.hotpath.*", ["actorgrid/hotpath/*.pyx"])],
        compiler_directives={
            "language_level": "3str",
            "boundscheck": profile,
            "wraparound": False,
            "embedsignature": True,
            "linetrace": profile,
        },
    )
    for extension in extensions:
        # Without a compiler the build goes on, and actorgrid.hotpath uses its reference twins.
        # Release wheels set ACTORGRID_REQUIRE_COMPILED=1 and fail instead.
        extension.optional = os.environ.get("ACTORGRID_REQUIRE_COMPILED") != "1"
        extension.extra_compile_args = ["-O3"]
    return extensions


setup(ext_modules=kernels())
