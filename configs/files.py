"""Reads the YAML files of a configuration directory; every refusal names file and line.

The files are read as node trees, so that each value keeps the line it was written on and a key
that occurs twice is seen. A file holds at most ``MAX_FILE_BYTES``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from actorgrid.errors import ConfigError, MalformedConfig, UnknownSetting

from .origins import Layer, Origin
from .schema import FILES, nearest

MAX_FILE_BYTES = 2**20


def read_files(directory: Path, known: list[str]) -> Layer:
    """All settings in the directory's YAML files; a file that is not there says nothing.

    *known* are the keys that exist. Raises MalformedConfig (no such directory, not YAML, a key twice,
    a file whose name means nothing) and UnknownSetting.
    """
    layer = Layer()
    for path in _yaml_files(directory):
        _File(path, known, layer).read()
    return layer


def read_text(path: Path) -> str:
    """The file as text, at most ``MAX_FILE_BYTES``. Raises MalformedConfig."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise MalformedConfig(
            f"cannot read {path}: {error.strerror}", asked=str(path), hint="mend its permissions or move it away"
        ) from error
    if len(raw) > MAX_FILE_BYTES:
        raise MalformedConfig(f"{path} is larger than {MAX_FILE_BYTES} bytes", asked=str(path), hint="is it the file?")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise MalformedConfig(
            f"{path}, line {line}: not UTF-8", asked=str(path), found=repr(raw[error.start : error.end]), line=line
        ) from error


def _yaml_files(directory: Path) -> list[Path]:
    names = sorted(set(FILES.values()))
    try:
        found = sorted(path for path in directory.iterdir() if path.suffix in (".yaml", ".yml"))
    except OSError as error:
        raise MalformedConfig(
            f"cannot read the configuration directory {directory}: {error.strerror}",
            asked=str(directory),
            hint="give a directory that holds " + ", ".join(names),
        ) from error
    for path in found:
        if path.name not in names:
            close = nearest(path.name, names)
            raise MalformedConfig(
                f"{path} would be ignored: no settings are read from a file of that name",
                asked=path.name,
                found="files that are read: " + ", ".join(names),
                hint=f"rename it to {close}" if close else "move it elsewhere",
            )
    return found


class _File:
    """One file on its way into a layer."""

    def __init__(self, path: Path, known: list[str], layer: Layer) -> None:
        self.path = path
        self.known = known
        self.layer = layer
        self.sections: set[str] = set()
        for key in known:
            parts = key.split(".")
            self.sections.update(".".join(parts[:depth]) for depth in range(1, len(parts)))

    def read(self) -> None:
        text = read_text(self.path)
        try:
            loader = yaml.SafeLoader(text)
            try:
                root = loader.get_single_node()
                if root is not None:
                    self._section(loader, root, "")
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else None
            problem = " ".join(part for part in (error.context, error.problem) if part)
            raise self._malformed(f"not valid YAML: {problem}", line, found=_line_of(text, line)) from error
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise self._malformed("holds a character YAML does not allow", line, found=_line_of(text, line)) from error
        except RecursionError as error:
            raise self._malformed("nests too deeply", None) from error

    def _section(self, loader: yaml.SafeLoader, node: yaml.Node, prefix: str) -> None:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(node, yaml.MappingNode):
            what = f"{prefix[:-1]} is a section" if prefix else "a configuration file holds sections"
            raise self._malformed(
                f"{what}: write its settings below it, indented, as name: value",
                _line(node),
                found="a list" if isinstance(node, yaml.SequenceNode) else repr(node.value),
            )
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            name, line = self._name(key_node), _line(key_node)
            if name in seen:
                raise self._malformed(
                    f"{prefix}{name} is written twice",
                    line,
                    found=f"the first is in line {seen[name]}",
                    hint="remove one of them",
                )
            seen[name] = line
            key = prefix + name
            if not prefix and FILES.get(name, self.path.name) != self.path.name:
                raise self._error(
                    UnknownSetting,
                    f"the section {name} does not belong here",
                    line,
                    asked=name,
                    hint=f"move it to {FILES[name]}",
                )
            if key in self.sections:
                self._section(loader, value_node, f"{key}.")
            elif key in self.known:
                value = loader.construct_object(value_node, deep=True)
                self.layer.put(key, value, Origin("file", self.path, line))
                self.layer.inner.update(self._inside(value_node, key, depth=3))
            else:
                raise self._unknown(key, line)

    def _name(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._malformed("a name is expected before the colon", _line(node))
        if node.tag == "tag:yaml.org,2002:merge":
            raise self._malformed("merging (<<) is not supported", _line(node), hint="write the settings out")
        return str(node.value)

    def _inside(self, node: yaml.Node, prefix: str, depth: int) -> Iterator[tuple[str, Origin]]:
        children: list[tuple[str, yaml.Node, yaml.Node]] = []
        if isinstance(node, yaml.SequenceNode):
            children = [(str(position), child, child) for position, child in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            children = [(str(name.value), name, child) for name, child in node.value]
        for name, where, child in children if depth else []:
            yield f"{prefix}.{name}", Origin("file", self.path, _line(where))
            yield from self._inside(child, f"{prefix}.{name}", depth - 1)

    def _unknown(self, key: str, line: int) -> ConfigError:
        top = key.split(".", maxsplit=1)[0]
        close = nearest(key, self.known if "." in key else sorted(FILES))
        hint = f"did you mean {close}?" if close else "the shipped file lists all settings"
        if close and FILES[close.split(".")[0]] != self.path.name:
            hint += f" It belongs in {FILES[close.split('.')[0]]}"
        elif not close and top in FILES:
            siblings = [name.removeprefix(f"{top}.") for name in self.known if name.startswith(f"{top}.")]
            hint = f"{top} has " + ", ".join(siblings)
        what = "setting" if "." in key else "section"
        return self._error(UnknownSetting, f"there is no {what} {key!r}", line, asked=key, hint=hint)

    def _malformed(self, problem: str, line: int | None, found: str = "", hint: str = "") -> ConfigError:
        return self._error(MalformedConfig, problem, line, asked=self.path.name, found=found, hint=hint)

    def _error(
        self, kind: type[ConfigError], problem: str, line: int | None, *, asked: str, found: str = "", hint: str = ""
    ) -> ConfigError:
        where = f"{self.path}, line {line}" if line else str(self.path)
        details: dict[str, Any] = {"file": str(self.path), "line": line}
        return kind(f"{where}: {problem}", asked=asked, found=found, hint=hint, **details)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _line_of(text: str, line: int | None) -> str:
    lines = text.splitlines()
    return lines[line - 1].strip()[:120] if line and line <= len(lines) else ""
