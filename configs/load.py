"""Puts a host's settings together from their sources, and remembers where each value came from.

Later ones win: defaults, flags of earlier starts (``start_options.py``), the YAML files, ``.env`` beside them, the
environment, flags. What was changed live is stored in the ledger and applied on top by the running agent.

The files are looked for in the directory given with ``--config`` (or ``ACTORGRID_CONFIG``), else in
``DATA_DIR/config`` where that exists, else nothing is read and the defaults hold: the shipped files state them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from actorgrid.errors import ConfigError, InvalidSetting, MalformedConfig

from .files import read_files
from .monitoring_section import SECRET_IN_URL
from .origins import DEFAULT, Layer, Origin
from .paths import default_data_dir
from .schema import Settings, unknown_setting
from .start_options import last_start, origin_of
from .variables import parse, read_dotenv, read_environment

SHIPPED_DIR = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and the origin of each by dotted key. ``config_dir`` is None when no files were read."""

    settings: Settings
    origins: dict[str, Origin]
    config_dir: Path | None = None


def load_settings(
    config_dir: Path | str | None = None,
    data_dir: Path | str | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    flag_names: Mapping[str, str] | None = None,
    forget: bool = False,
) -> LoadedSettings:
    """Read all sources and check every value.

    *overrides* are flags, by dotted key; *flag_names* says how the person wrote one when that was not ``--set``.
    *forget*: without the flags of earlier starts.
    Raises MalformedConfig, UnknownSetting or InvalidSetting with file and line (or variable or flag) in the message
    and, where it is known, ``file``, ``line`` and ``key`` in ``details``. Nothing is changed anywhere.
    """
    environ = os.environ if environ is None else environ
    defaults = Settings()
    known = defaults.keys()
    structured = [key for key in known if isinstance(defaults.get(key), list)]
    directory = find_config_dir(config_dir, data_dir, environ)
    layers = [
        _read_flags(overrides or {}, flag_names or {}, known, structured),
        read_environment(environ, known, structured),
    ]
    if directory is not None:
        layers += [read_dotenv(directory / ".env", known, structured), read_files(directory, known)]
    if not forget:
        layers.append(_read_earlier(Path(data_dir) if data_dir else default_data_dir(), known, structured))
    settings = _merge(layers)
    origins = {key: next((layer.origins[key] for layer in layers if key in layer.origins), DEFAULT) for key in known}
    settings.set_origins({key: str(origin) for key, origin in origins.items() if origin.kind != "default"})
    return LoadedSettings(settings, origins, directory)


def find_config_dir(
    config_dir: Path | str | None, data_dir: Path | str | None, environ: Mapping[str, str]
) -> Path | None:
    """The directory the files are read from, or None for none. Raises MalformedConfig when a named one is not there."""
    named = config_dir or environ.get("ACTORGRID_CONFIG")
    if named:
        directory = Path(named).expanduser()
        if not directory.is_dir():
            raise MalformedConfig(
                f"there is no directory {directory}",
                asked=str(named),
                found="a file" if directory.exists() else "nothing",
                hint="--config names a directory that holds cluster.yaml and its siblings, any of which may be missing",
            )
        return directory
    beside = Path(data_dir) / "config" if data_dir else default_data_dir() / "config"
    return beside if os.path.isdir(beside) else None  # a parent we may not look into counts as absent


def _read_flags(
    overrides: Mapping[str, str], flag_names: Mapping[str, str], known: list[str], structured: list[str]
) -> Layer:
    layer = Layer()
    for key, text in overrides.items():
        if key not in known:
            raise unknown_setting(key, known)
        origin = Origin("flag", name=flag_names.get(key, f"--set {key}"))
        layer.put(key, parse(key, text, origin, structured), origin)
    return layer


def _read_earlier(data_dir: Path, known: list[str], structured: list[str]) -> Layer:
    """Read the flags of earlier starts. One that only another version knows says nothing here."""
    layer = Layer()
    for key, flag in last_start(data_dir).flags.items():
        if key in known:
            origin = Origin("remembered", name=origin_of(flag))
            layer.put(key, parse(key, flag.text, origin, structured), origin)
    return layer


def _merge(layers: list[Layer]) -> Settings:
    """All layers over the defaults, first layer first. Raises InvalidSetting for the first wrong value."""
    # 150 ms of imports, paid only by those who load settings.
    from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

    # The defaults are a layer of their own: a section's default may differ from its type's (work.pools.general).
    base = Settings()
    known = base.keys()
    lowest = Layer({key: base.get(key) for key in known})

    class LayerSource(PydanticBaseSettingsSource):
        def __init__(self, settings_cls: type[BaseSettings], layer: Layer) -> None:
            super().__init__(settings_cls)
            self.layer = layer

        def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
            return self.layer.tree().get(field_name), field_name, False

        def __call__(self) -> dict[str, Any]:
            return self.layer.tree()

    class LayeredSettings(Settings, BaseSettings):
        model_config = SettingsConfigDict(extra="forbid")

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(LayerSource(settings_cls, layer) for layer in [*layers, lowest])

    try:
        merged = LayeredSettings()
    except ValidationError as error:
        raise _invalid(error, layers) from None
    # A plain Settings: it is pickled between processes, and a class made here could not be.
    return Settings(**{name: getattr(merged, name) for name in Settings.model_fields})


def _invalid(error: ValidationError, layers: list[Layer]) -> ConfigError:
    problems = error.errors(include_url=False)
    problem = next((found for found in problems if found["type"] == "extra_forbidden"), problems[0])
    defaults = Settings()
    known = defaults.keys()
    where = ".".join(str(part) for part in problem["loc"])
    if "key" in problem.get("ctx", {}):
        where = _culprit(where, problem["ctx"]["key"], layers)
    key = next((name for name in known if where == name or where.startswith(f"{name}.")), where)
    origin = DEFAULT
    value = problem["input"]
    for layer in layers:
        if key in layer.origins:
            origin = _innermost(where, key, layer)
            value = layer.values[key] if where == key else value
            break
    name = where.rsplit(".", 1)[-1]
    return InvalidSetting(
        f"{origin.place}: {where}: {_sentence(problem['type'], problem['msg'], value)}",
        asked=_asked(name, key, value, problem["type"]),
        hint=f"{key.rsplit('.', 1)[-1]}: {defaults.describe(key)}; default {defaults.get(key)!r}"
        if key in known
        else "",
        key=key,
        file=str(origin.file) if origin.file else None,
        line=origin.line,
    )


def _innermost(where: str, key: str, layer: Layer) -> Origin:
    """The line of *where* inside a list, or of what encloses it."""
    while where != key:
        if where in layer.inner:
            return layer.inner[where]
        where = where.rsplit(".", 1)[0]
    return layer.origins[key]


def _sentence(kind: str, message: str, value: object) -> str:
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind == "missing":
        return "this field is needed"
    if value is None:
        return "it has no value; write one, or remove the line"
    if kind == "string_pattern_mismatch":
        return "it is not of the expected form"
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _culprit(section: str, name: str, layers: list[Layer]) -> str:
    """The setting to show for a contradiction inside a section: the one named, or the sibling somebody wrote."""
    written = [key for layer in layers for key in layer.origins if key.rsplit(".", 1)[0] == section]
    return f"{section}.{name}" if f"{section}.{name}" in written or not written else written[0]


def _asked(name: str, key: str, value: object, kind: str) -> str:
    if kind == "missing":
        return f"{key} without {name}"
    return f"{name}: {'(hidden)' if kind == SECRET_IN_URL else repr(value)}"[:200]
