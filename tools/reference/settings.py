"""Texts, types and defaults of the settings of config classes.

A setting's text stands below its field, in the section `Attributes:` of the class, or in the docstring of
the class as a sentence that begins with the name of the setting.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

Types = tuple[Any, ...]

PLAIN = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "bool": "true or false",
    "NoneType": "null",
    "datetime": "time",
    "date": "day",
}
BOUNDS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
LARGEST = 2**31 - 1
"""Bounds of the types of columns, which nobody meets, are not shown."""

LABEL = re.compile(r"(?:^|(?<=[.;:] ))((?:`\w+`(?:, | and ))*`\w+`)(:?) ")


def list_settings(model: type[BaseModel]) -> list[str]:
    """Return the names of a class's settings, those of its bases first."""
    return list(model.model_fields)


@cache
def read_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the texts of the settings of a class, with those of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            texts.update(_read_own_texts(base))
    return {name: text for name, text in texts.items() if name in model.model_fields}


def _read_own_texts(model: type[BaseModel]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    document = ast.get_docstring(tree) or ""
    return {**_read_sentences(document), **_read_attributes(document), **_read_below(tree.body)}


def _read_below(body: list[ast.stmt]) -> dict[str, str]:
    """Return the texts that stand below a field."""
    return {
        field.target.id: _join_lines(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _read_attributes(document: str) -> dict[str, str]:
    """Return the texts of the section `Attributes:`."""
    section = document.partition("Attributes:\n")[2].partition("\n\n")[0]
    texts: dict[str, str] = {}
    for names, text in re.findall(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
        line = _join_lines(text)
        texts.update(dict.fromkeys(names.split(", "), line[:1].upper() + line[1:]))
    return texts


def _read_sentences(document: str) -> dict[str, str]:
    """Return the texts of sentences that begin with the name of a setting.

    >>> _read_sentences("`a`: the one. `b` maps names; `c`, `d`: others. More of them.")
    {'a': 'The one.', 'b': '`b` maps names.', 'c': 'Others. More of them.', 'd': 'Others. More of them.'}
    """
    texts: dict[str, str] = {}
    for paragraph in document.partition("Attributes:\n")[0].split("\n\n"):
        line = _join_lines(paragraph)
        marks = list(LABEL.finditer(line))
        for mark, after in zip(marks, [*marks, None][1:], strict=True):
            end = after.start() if after else len(line)
            begin = mark.end() if mark[2] else mark.start()
            text = line[begin:end].strip().rstrip(";").removesuffix(".") + "."
            for name in re.findall(r"\w+", mark[1]):
                texts.setdefault(name, text[0].upper() + text[1:])
    return texts


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def introduce(model: type[BaseModel]) -> str:
    """Return the docstring of a class without the paragraphs that are about single settings."""
    document = inspect.cleandoc(model.__doc__ or "").partition("Attributes:")[0]
    kept = [paragraph for paragraph in document.strip().split("\n\n") if not LABEL.match(paragraph)]
    return re.sub(r"^([a-z_]+): ", r"- `\1`: ", "\n\n".join(kept), flags=re.MULTILINE)


def show_field(field: FieldInfo) -> str:
    """Return the values that a setting can take, in words."""
    text = show_type(field.annotation)
    bounds = _show_bounds(field.metadata)
    return f"{text}, {bounds}" if bounds else text


def show_type(annotation: Any) -> str:
    """Return a type in words.

    >>> show_type(tuple[int, ...] | None)
    'list of whole number or null'
    """
    origin = get_origin(annotation)
    show = SHOWN.get(origin)
    return show(get_args(annotation)) if show else _show_class(annotation)


def _show_union(inner: Types) -> str:
    return " or ".join(dict.fromkeys(map(show_type, inner)))


def _show_map(inner: Types) -> str:
    return f"map of {show_type(inner[0])} to {show_type(inner[1])}"


def _show_tuple(inner: Types) -> str:
    one_type = len(inner) == 1 or inner[-1] is Ellipsis
    return f"list of {show_type(inner[0])}" if one_type else ", ".join(map(show_type, inner))


def _show_choices(inner: Types) -> str:
    return ", ".join(f"`{value}`" for value in inner)


def _show_annotated(inner: Types) -> str:
    metadata = [
        rule for one in inner[1:] for rule in (one.metadata if isinstance(one, FieldInfo) else [one])
    ]
    bounds = _show_bounds(metadata)
    return f"{show_type(inner[0])} {bounds}".strip()


SHOWN: dict[Any, Callable[[Types], str]] = {
    Literal: _show_choices,
    Annotated: _show_annotated,
    Union: _show_union,
    types.UnionType: _show_union,
    dict: _show_map,
    tuple: _show_tuple,
    list: _show_tuple,
}


def _show_class(annotation: Any) -> str:
    name = getattr(annotation, "__name__", str(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{name}]"
    return PLAIN.get(name, name)


def _show_bounds(metadata: list[Any]) -> str:
    words = [
        f"{word} {_show_number(getattr(rule, name))}"
        for rule in metadata
        for name, word in BOUNDS
        if isinstance(getattr(rule, name, None), int | float) and abs(getattr(rule, name)) < LARGEST
    ]
    return " and ".join(words)


def _show_number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def show_default(field: FieldInfo) -> str:
    """Return the default of a setting as YAML would have it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    plain = _make_plain(value)
    if isinstance(value, BaseModel) and _has_defaults(value):
        return "its defaults"
    return f"`{json.dumps(plain, default=str)}`"


def _has_defaults(section: BaseModel) -> bool:
    fields = type(section).model_fields.values()
    return not any(field.is_required() for field in fields) and section == type(section)()


def _make_plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, tuple):
        return [_make_plain(one) for one in value]
    return value


def list_sections(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return a class and all classes of its settings, each once, in the order in which they stand."""
    seen: dict[type[BaseModel], None] = {}

    def visit(one: type[BaseModel]) -> None:
        if one not in seen:
            seen[one] = None
            for field in one.model_fields.values():
                for inner in find_models(field.annotation):
                    visit(inner)

    visit(model)
    return list(seen)


def find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the classes of settings in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from find_models(inner)


def find_silent(models: list[type[BaseModel]]) -> list[str]:
    """Return `Class.setting` of the settings without a text."""
    return [
        f"{model.__name__}.{name}"
        for model in models
        for name in list_settings(model)
        if not read_texts(model).get(name)
    ]
