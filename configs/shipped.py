"""The configuration files that ship: written from the schema, so that they cannot disagree with it.

``python -m actorgrid.configs.shipped`` writes them anew. Every setting stands there commented out, with its default,
bounds and meaning; to change one, remove the ``#`` and edit the value.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from .schema import FILES, Settings
from .section import Section
from .variables import OTHER_VARIABLES, variable

HEADS = {
    "cluster.yaml": "The host, its GPUs, and the work it takes.",
    "security.yaml": "Who may do what.",
    "monitoring.yaml": "Logs and figures about the agent itself.",
    "performance.yaml": "Sizes that trade speed against memory and disk.",
}
HOW = """
Every setting is shown with its default. To change one: copy this file to DATA_DIR/config/ (or any directory, given
with --config), remove the # before the name, and edit the value. Flags win over the environment, that over .env
beside this file, that over this file. [live] settings also change without a restart: actorgrid config set KEY VALUE.
Sizes are bytes, or a number with KiB, MiB, GiB (1024) or kB, MB, GB (1000); names end in their unit.
"""
WIDTH = 118
_BOUNDS = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


def render(file: str) -> str:
    """The text of one shipped YAML file."""
    lines = [f"# {HEADS[file]}", *_comment(HOW.replace("\n", " ").strip(), "")]
    settings = Settings()
    for name in [section for section, home in FILES.items() if home == file]:
        lines += ["", *_section(name, getattr(settings, name), "")]
    return "\n".join(lines) + "\n"


def render_env_example() -> str:
    """The text of ``.env.example``: each setting as a variable, and the variables that are no settings."""
    settings = Settings()
    known = settings.keys()
    lines = _comment("Copy to .env beside the YAML files and remove the # of what you change. Real environment", "")
    lines[0] += " variables have"
    lines += ["# the same names and win over this file. Lists are written in JSON.", ""]
    lines += [f"#{variable(key)}={_plain(key, settings.get(key))}" for key in known]
    lines += ["", "# Only in the real environment, not here:"]
    lines += [f"#   {name}: {meaning}" for name, meaning in OTHER_VARIABLES.items()]
    return "\n".join(lines) + "\n"


def write(directory: Path) -> list[Path]:
    """Write all of them; gives the paths."""
    paths = [directory / name for name in HEADS]
    for path in paths:
        path.write_text(render(path.name), encoding="utf-8")
    example = directory / ".env.example"
    example.write_text(render_env_example(), encoding="utf-8")
    return [*paths, example]


def _section(name: str, section: Section, indent: str) -> list[str]:
    about = (type(section).__doc__ or "").strip().splitlines()[0]
    lines = [*_comment(about, indent), f"{indent}{name}:"]
    inner = indent + "  "
    for field_name, field in type(section).model_fields.items():
        value = getattr(section, field_name)
        if isinstance(value, Section):
            lines += _section(field_name, value, inner)
            continue
        extra = field.json_schema_extra
        live = " [live]" if isinstance(extra, dict) and extra.get("live") else ""
        lines += _comment(f"{field.description}{_bounds(field_name, field)}{live}", inner)
        lines.append(f"{inner}#{field_name}: {_plain(field_name, value)}")
    return lines


def _bounds(name: str, field: FieldInfo) -> str:
    found = [" or ".join(get_args(field.annotation))] if get_origin(field.annotation) is Literal else []
    for limit in field.metadata:
        for attribute, text in _BOUNDS.items():
            value = getattr(limit, attribute, None)
            if value is not None and value != 2**60 and (attribute, value) != ("ge", 0):
                found.append(text.format(_plain(name, value)))
    return f" ({', '.join(dict.fromkeys(found))})" if found else ""


def _plain(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int) and value >= 1024:
        for unit, power in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if value % power == 0:
                return f"{value // power}{unit}"
    return json.dumps(value) if not isinstance(value, str) else (value or '""')


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, WIDTH - len(indent) - 2)]


if __name__ == "__main__":
    for written in write(Path(__file__).resolve().parent):
        print(written.name)
