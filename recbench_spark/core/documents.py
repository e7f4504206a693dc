"""YAML for benchmark files, without repeated keys or alias bombs.

Errors name a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from recbench_spark.core.strict_settings import shorten
from recbench_spark.errors import ConfigError

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader where it is installed; it is ten times faster."""


class _Settings(Loader):  # type: ignore[misc]
    """A loader whose keys are texts where YAML 1.1 sees yes or no, as in `on: train`."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        for key, _ in node.value:
            key.tag = key.tag.replace(":bool", ":str")


MAX_DEPTH = 50
"""Levels of nested sections; a benchmark file has six."""

MAX_ALIAS_NODES = 100_000
"""Nodes that aliases (`*name`) may add to those written: a few lines can stand for millions of nodes."""


def load_yaml(text: str, where: str) -> Any:
    """Return a YAML text's value, safely.

    Time and memory grow with its length only.

    Raises:
        ConfigError: the text is no YAML, a key stands twice, or it is too deep or grows by aliases.
    """
    try:
        _check_events(yaml.parse(text, Loader=Loader), where)
        return yaml.load(text, Loader=_Settings)
    except yaml.YAMLError as error:
        message = shorten(" ".join(str(error).split()))
    # PyYAML raises these for a tag or date which does not fit its text: !!int foo, 2026-99-99.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        message = f"a value does not fit its tag or form: {shorten(str(error))}"
    raise ConfigError(f"{where}: not valid YAML: {message}", "quote text that is not meant as YAML")


class _OpenNode:
    """An open section or list: its nodes and keys."""

    def __init__(self, event: yaml.CollectionStartEvent) -> None:
        self.anchor, self.nodes = event.anchor, 1
        self.lines: dict[str, str] | None = {} if isinstance(event, yaml.MappingStartEvent) else None
        self.is_key = True

    def find_repeated(self, key: str | None, line: str) -> str | None:
        """Count the next entry; return an equal earlier key's line.

        An entry is a key or a value.
        """
        if self.lines is None:
            return None
        self.is_key, is_key = not self.is_key, self.is_key
        if not is_key or key is None:
            return None
        earlier = self.lines.get(key)
        self.lines.setdefault(key, line)
        return earlier


def _check_events(events: Iterable[yaml.Event], where: str) -> None:
    """Check a document's depth, keys and aliases before building it."""
    sizes: dict[str, int] = {}
    inside: list[_OpenNode] = []
    repeated = 0
    for event in events:
        nodes = 0
        if isinstance(event, yaml.NodeEvent) and inside:
            _check_key(event, inside[-1], where)
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append(_OpenNode(event))
            if len(inside) > MAX_DEPTH:
                raise ConfigError(f"{where}: more than {MAX_DEPTH} sections in one another", _line(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            section = inside.pop()
            nodes = section.nodes
            sizes |= {section.anchor: nodes} if section.anchor else {}
        elif isinstance(event, yaml.AliasEvent):
            nodes = _alias_size(event, sizes, inside, where)
            repeated += nodes
        elif isinstance(event, yaml.ScalarEvent):
            _refuse_old_number(event, where)
            nodes = 1
        if inside:
            inside[-1].nodes += nodes
        if repeated > MAX_ALIAS_NODES:
            raise ConfigError(f"{where}: aliases add more than {MAX_ALIAS_NODES} values", _line(event))


def _check_key(event: yaml.NodeEvent, section: _OpenNode, where: str) -> None:
    """Raise ConfigError for text outside Unicode, or a repeated key."""
    key = event.value if isinstance(event, yaml.ScalarEvent) else None
    if key and not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
        raise ConfigError(f"{where}: text that is not Unicode", _line(event))
    earlier = section.find_repeated(key, _line(event))
    if earlier is not None:
        message = f"{where}: key '{shorten(str(key))}' occurs twice in one section"
        raise ConfigError(message, f"{earlier} and {_line(event)}: keep one of them")


OCTAL = re.compile(r"[-+]?0[0-7_]+")
BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
"""Numbers in base 8 (010) or base 60 (1:10) for YAML 1.1; authors of settings mean neither."""


def _refuse_old_number(event: yaml.ScalarEvent, where: str) -> None:
    """Raise ConfigError where YAML 1.1 would read another number.

    Only plain scalars can be concerned.
    """
    text = event.value
    if not (event.implicit[0] or (event.tag or "").endswith((":int", ":float"))):
        return
    octal = bool(OCTAL.fullmatch(text)) and int(text, 8) != int(text)
    if octal or BASE_60.fullmatch(text):
        message = f"{where}: YAML takes {shorten(text)} for a number in base {8 if octal else 60}"
        plain = f" {int(text)}, or" if octal else ""
        raise ConfigError(message, f"{_line(event)}: write{plain} quotes around it: '{shorten(text)}'")


def _alias_size(event: yaml.AliasEvent, sizes: dict[str, int], inside: list[_OpenNode], where: str) -> int:
    name = str(event.anchor)
    if name in [section.anchor for section in inside]:
        raise ConfigError(f"{where}: *{shorten(name)} contains itself", _line(event))
    return sizes.get(name, 1)


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else ""
