"""What ``doctor`` says of work types that installed packages bring."""

from __future__ import annotations

from collections.abc import Iterator

from .checks import Finding


def check_grpc(listen: str) -> Iterator[Finding]:
    """Check that what serves gRPC is installed, where it is to be served at *listen*."""
    from actorgrid.actors.gateway.grpc_door.door_keeper import INSTALL, missing_libraries

    missing = missing_libraries()
    if missing:
        text = f"unavailable: {', '.join(missing)} not installed"
        yield Finding("grpc", "problem" if listen else "note", text, INSTALL)
    else:
        yield Finding("grpc", "ok", f"to be served at {listen}" if listen else "available; grpc.listen is not set")


def check_oidc(issuer: str) -> Iterator[Finding]:
    """Check that what verifies tokens is installed, where people sign in at *issuer*."""
    from actorgrid.actors.security.oidc_tokens import INSTALL, check_extra
    from actorgrid.errors import NotSupported

    if not issuer:
        return
    try:
        check_extra()
    except NotSupported as error:
        yield Finding("oidc", "problem", f"nobody can sign in at {issuer}: {error.found}", f"{INSTALL}, and restart")
    else:
        yield Finding("oidc", "ok", f"people sign in at {issuer}")


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
