"""``slurm``: Slurm's commands, said of this cluster."""

from __future__ import annotations

from .group import command

__all__ = ["command"]
