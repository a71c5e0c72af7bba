"""Experiment files: YAML read and written, where each field stands, and why a file is run.

This is the only module that imports yaml.
Scalars are read as in YAML 1.2: ``1e-3`` is a number. ``off``, ``010`` and ``12:30`` are text, so a
typed field refuses them. Repeated keys, anchors and explicit tags are errors.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vitcli.core.spec import Spec
from vitcli.runner.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_TOKENS = 250_000
"""The longest list of ``labels.MOST_TEXT`` has 200,000; reading takes about two seconds."""
OPENING = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
)
COLON_IN_TEXT = "mapping values are not allowed here"
CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
INTEGER = re.compile(r"[-+]?(0|[1-9]\d{0,30})")
FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?")
WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}

LOADERS: tuple[Any, ...] = (getattr(yaml, "CSafeLoader", yaml.SafeLoader), yaml.SafeLoader)
"""PyYAML's parser in C, where PyYAML has it: ten times as fast. What it refuses is read again by
the one in Python, whose messages are more precise."""

FieldPath = tuple[str | int, ...]


class Document:
    """Parsed YAML mapping with the line number of each field."""

    def __init__(self, text: str, origin: str) -> None:
        self.origin = origin
        self.lines: dict[FieldPath, int] = {}
        """Field -> its line; 0 for fields that were not read from a file."""
        if len(text.encode(errors="surrogateescape")) > MAX_BYTES:
            raise ConfigError(f"{origin}: larger than {MAX_BYTES} bytes")
        try:
            node = self._compose(text, LOADERS[0])
        except ConfigError:
            node = self._compose(text, LOADERS[1])
        self.data: Any = {} if node is None else self._read(node, ())

    def _compose(self, text: str, loader: Any) -> yaml.Node | None:
        try:
            depth = 0
            for count, token in enumerate(yaml.scan(text, Loader=loader)):
                depth += isinstance(token, OPENING) - isinstance(token, CLOSING)
                if depth > MAX_DEPTH or count > MAX_TOKENS:
                    line = token.start_mark.line + 1
                    raise ConfigError(f"{self.origin}:{line}: nested too deeply or too long")
                if isinstance(token, yaml.AnchorToken | yaml.AliasToken | yaml.TagToken):
                    line = token.start_mark.line + 1
                    raise ConfigError(f"{self.origin}:{line}: anchors and tags are not allowed")
            return yaml.compose(text, Loader=loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f":{mark.line + 1}" if mark else ""
            hint = "; put text with ': ' in quotes" if error.problem == COLON_IN_TEXT else ""
            raise ConfigError(f"{self.origin}{where}: not YAML: {error.problem}{hint}") from error
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError(f"{self.origin}: not YAML: {reason}") from error

    def _read(self, node: yaml.Node, path: FieldPath) -> Any:
        self.lines[path] = node.start_mark.line + 1
        if len(path) > MAX_DEPTH:
            raise ConfigError(f"{self.where(path)}: nested too deeply")
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style else scalar(node.value)
        if isinstance(node, yaml.SequenceNode):
            return [self._read(item, (*path, i)) for i, item in enumerate(node.value)]
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key, str):
                raise ConfigError(f"{self.where(path)}: a key must be plain text")
            if key in out:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"{self.origin}:{line}: {key!r} appears twice")
            out[key] = self._read(value_node, (*path, key))
            self.lines[(*path, key)] = key_node.start_mark.line + 1
        return out

    def where(self, path: FieldPath) -> str:
        """Return ``file:line`` of a field, or of the nearest one around it; at worst the origin."""
        while path and path not in self.lines:
            path = path[:-1]
        line = self.lines.get(path, 1)
        return f"{self.origin}:{line}" if line else self.origin


def scalar(text: str) -> Any:
    """Return the value of a plain scalar in YAML 1.2."""
    if text in WORDS:
        return WORDS[text]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if FLOAT.fullmatch(text) else text


def read_mapping(path: Path) -> Document:
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: not a file")
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from error
    document = Document(text, str(path))
    if not isinstance(document.data, dict):
        raise ConfigError(f"{path}: an experiment is a mapping of fields, such as 'model:'")
    return document


class _Dumper(yaml.SafeDumper):
    """Writer of YAML that ``scalar`` reads back: floats with a point, text in quotes if needed."""


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = repr(value)
    if "." not in text:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None if isinstance(scalar(value), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _represent_list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)


def dump(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=100)


def document_of(data: Any, origin: str) -> Document:
    document = Document(dump(data), origin)
    document.lines = dict.fromkeys(document.lines, 0)
    return document


def format_value(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"\w[\w:./-]*", value) and scalar(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


SET = "--set"
Source = Mapping[str, str]
"""Dotted field -> the place where a file or a command line sets it."""


@dataclass(frozen=True)
class Places:
    """The sources of an experiment, the one with the highest precedence first."""

    sources: Sequence[Source]
    otherwise: str
    """Place of a problem that no field explains."""

    def where(self, path: FieldPath) -> str:
        """Return the place of a field, or of the nearest field that contains it.

        A source with a field inside the wrong field counts too: ``--set model.num_heads=5`` is the
        place of a problem of ``model``.
        """
        for length in range(len(path), 0, -1):
            field = ".".join(map(str, path[:length]))
            for source in self.sources:
                inside = (place for name, place in source.items() if name.startswith(f"{field}."))
                if place := source.get(field) or next(inside, None):
                    return place
        return self.otherwise

    def below(self, group: str, label: str = "") -> Source:
        """Return the places of the fields inside ``group``, with a label behind each place."""
        prefix = f"{group}."
        return {
            name.removeprefix(prefix): f"{place}{label}"
            for source in reversed(self.sources)
            for name, place in source.items()
            if name.startswith(prefix)
        }


Place = Places | Document
"""What knows where a field is written."""


def in_files(documents: Sequence[Document]) -> Places:
    """Return the places of fields in a file and its bases, the file first."""
    sources = [
        {".".join(map(str, path)): document.where(path) for path in document.lines if path}
        for document in documents
    ]
    return Places(sources, documents[0].where(()))


def on_command_line(changes: Mapping[str, Any], options: Mapping[str, str]) -> Places:
    """Return the places of changed fields: ``options`` names some, such as ``--epochs``."""
    typed = {field: options.get(field, SET) for field in changes}
    return Places([typed], " and ".join(dict.fromkeys(typed.values())))


def is_typed(place: str) -> bool:
    return place.startswith("--")


class Purpose(Spec):
    """The question and the hypothesis of an experiment or study.

    They belong to one file: a file does not take them from its base. They are no part of the
    configuration that a run stores, and of its hash.
    """

    question: str = ""
    """Question that the experiment or study answers, in one sentence."""
    hypothesis: str = ""
    """Result that is expected, stated before the first training."""


FILE_FIELDS = ("base", *Purpose.model_fields)
"""Fields of every experiment file that are no part of the experiment's spec."""


def read_purpose(document: Document) -> Purpose:
    given = {name: document.data.get(name) for name in Purpose.model_fields}
    for name, value in given.items():
        if not isinstance(value, str | None):
            where = document.where((name,))
            raise ConfigError(f"{where}: {name}: should be text; put it in quotes")
    return Purpose(**{name: value for name, value in given.items() if value is not None})


ENTRY = re.compile(r"# (\w+):\s+(.*\S)")
CONTINUED = re.compile(r"#\s{2,}(.*\S)")
OF_THE_ORIGINAL = ("Run", "Cost", "Result", "Tuned", "Reading")
"""Entries that are true of one file only: its command, its cost, its results, the images on which
its settings were chosen, and the explanation."""


def without_results(text: str) -> str:
    """Return the text of a file without the entries that are true of this file only."""
    kept, dropping = [], False
    for line in text.splitlines(keepends=True):
        if match := ENTRY.fullmatch(line.rstrip()):
            dropping = match[1] in OF_THE_ORIGINAL
        elif not CONTINUED.fullmatch(line.rstrip()):
            dropping = False
        if not dropping:
            kept.append(line)
    return "".join(kept)


def value_at(raw: Any, field: str) -> Any:
    """Return the value of a dotted field; None if it is not set."""
    for key in field.split("."):
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw
