"""The option that names labels of jobs."""

from __future__ import annotations

import click

from actorgrid.labels import labels_of


def labels_option(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """``KEY=VALUE``; the last of equal keys counts."""
    try:
        return labels_of(values) or None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
