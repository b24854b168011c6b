"""What ``doctor`` says of work types that installed packages bring."""

from __future__ import annotations

from collections.abc import Iterator

from .checks import Finding


def check_work_types() -> Iterator[Finding]:
    """Check that each work type of an installed package can be loaded, and has a schema."""
    from actorgrid.work_types.registry import BUILT_IN, work_types

    found, broken = work_types()
    for each in broken:
        fix = f"mend or remove the package that offers {each.value}"
        yield Finding("work types", "problem", f"{each.name}: {each.reason}", fix)
    if not broken:
        of_packages = [each.name for each in found if each.name not in BUILT_IN]
        more = f", of installed packages: {', '.join(of_packages)}" if of_packages else ""
        yield Finding("work types", "ok", f"{len(BUILT_IN)} that ship{more}")
