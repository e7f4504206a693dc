"""Strict settings: base class, types, error messages, hashes.

All sections of a benchmark file build on it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from recbench_spark.errors import ConfigError, nearest

M = TypeVar("M", bound=BaseModel)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Pattern of a name fit for SQL, a path or a partition value."""


SECRET = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|signature|\bsas\b|\bsig\b|\bauth"
    r"|(?:access|account|api|private|storage).?key|\bkeys?\b|key(?:tab|store|file)"
)
"""Words in names of options or parameters with secrets."""

KEY_SHAPES = (
    r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}",  # AWS: access key ids
    r"AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{28}|GOOG[A-Z0-9]{20,57}",  # Google: keys and tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"[A-Za-z0-9/+]{86}==|[\w~.-]{3}[0-9]Q~[\w~.-]{31,34}",  # Azure: keys for accounts and applications
    r"dapi[0-9a-f]{32}|gh[opsur]_[A-Za-z0-9]{36}|github_pat_\w{22,}|hf_[A-Za-z0-9]{34}",
    r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+",  # JSON Web Tokens
)
"""Keys and tokens recognised by their form, wherever they stand."""

SECRET_KEY = re.compile(r"(?:(?<=://)|(?<![\w/+.-]))[A-Za-z0-9/+]{40}(?![\w/+=.-])")
"""The form of AWS's secret access keys; a path may have it too."""

MIN_CHANGES, LONGEST_WORD = 15, 5
"""Limits for 40 random letters: at least so many changes between small letters, capitals and digits (25 on
average), and at most so many small letters in a row. Names and paths have longer words."""

SECRETS = re.compile(
    r"://[^/@\s:]*:(?!\d+(?:[/,]|$))\S*@"  # user:password@; a port has a slash or nothing after it
    r"|https?://[^/\s@]+@"
    rf"|[?&;][^=&;\s]*(?:{SECRET})[^=&;\s]*="
    rf"|(?-i:(?<![A-Za-z0-9])(?:{'|'.join(KEY_SHAPES)})(?![A-Za-z0-9]))",
    re.IGNORECASE,
)
"""Text with a password, a key or a signature."""

SECRETS_HINT = (
    "settings are printed and stored beside results: secrets belong to Spark (spark.hadoop.* in a "
    "properties file of your own), to the cluster's roles, or to the environment"
)


def holds_secret(text: str) -> bool:
    """Check whether a text holds a password or similar.

    A key, a token or a signature is similar.

    >>> holds_secret("s3a://bucket/log"), holds_secret("s3a://user:word@bucket/log")
    (False, True)
    """
    return bool(SECRETS.search(text)) or any(map(_is_mixed, SECRET_KEY.findall(text)))


def _is_mixed(text: str) -> bool:
    if text in (text.lower(), text.upper()):
        return False  # a hash in hexadecimal digits
    kinds = ["A" if letter.isupper() else "a" if letter.isalpha() else "0" for letter in text]
    changes = sum(one != other for one, other in pairwise(kinds))
    return changes >= MIN_CHANGES and max(map(len, re.findall("[a-z]+", text)), default=0) <= LONGEST_WORD


def refuse_secrets(text: str, where: str) -> None:
    """Refuse a text with a secret, since settings are printed.

    Raises:
        ConfigError: the text holds a secret; the message does not repeat it.
    """
    if holds_secret(text):
        raise ConfigError(f"{where} holds a password, key or token", SECRETS_HINT)


MAY_REPEAT = ("ratio", "final", "samples")
"""Fields whose numbers may be equal: shares of parts, widths of dense layers."""


class Strict(BaseModel):
    """Base of all sections: frozen, and strict about values.

    It refuses unknown keys, infinite numbers, secrets and repeated names. `added_later`: fields added after
    the first warehouses. While they have their default, they are neither stored nor hashed, so no id
    changes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    added_later: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _drop_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        for name in self.added_later & document.keys():
            if getattr(self, name) == fields[name].default:
                del document[name]
        return document

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsafe_values(cls, document: Any) -> Any:
        for key, value in document.items() if isinstance(document, dict) else ():
            if any(holds_secret(text) for text in _field_texts(value, _is_map(cls, key))):
                raise ValueError(f"{key} holds a password, key or token; {SECRETS_HINT}")
            if not _accepts_bool(cls, key):
                _refuse_bools(key, value, _is_map(cls, key))
            elif isinstance(value, set | frozenset):
                _refuse_bools(key, value)
        return document

    @model_validator(mode="after")
    def _refuse_repeated_values(self) -> Self:
        for name, value in self:
            if name not in MAY_REPEAT and isinstance(value, tuple):
                twice = _find_repeated(value)
                if twice is not None:
                    raise ValueError(f"{name}: {twice!r} is given twice")
        return self


def _field_texts(value: Any, is_map: bool) -> list[str]:
    """Return the texts in a field, list or map.

    A map's keys count, too. Sections check their own.
    """
    if is_map and isinstance(value, dict):
        value = [*value, *value.values()]
    values = value if isinstance(value, list | tuple) else [value]
    return [text for text in values if isinstance(text, str)]


@cache
def _accepts_bool(model: type[BaseModel], key: Any) -> bool:
    """Check whether a field is a bool.

    For other fields, pydantic takes true and false for 1 and 0.
    """
    field = model.model_fields.get(key) if isinstance(key, str) else None
    return field is None or bool in _types_in(field.annotation)


def _types_in(annotation: Any) -> set[Any]:
    """Return the types in an annotation.

    For `tuple[bool | int, ...]` these are bool and int.
    """
    inner = get_args(annotation)
    return set().union(*map(_types_in, inner)) if inner else {annotation}


@cache
def _is_map(model: type[BaseModel], key: Any) -> bool:
    """Check whether a field maps names to plain values.

    Sections, and maps of sections, check themselves.
    """
    field = model.model_fields.get(key) if isinstance(key, str) else None
    if field is None or get_origin(field.annotation) is not dict:
        return False
    return not any(
        isinstance(leaf, type) and issubclass(leaf, BaseModel) for leaf in _types_in(field.annotation)
    )


def _refuse_bools(key: Any, value: Any, is_map: bool = False) -> None:
    """Refuse true, false and sets, also inside lists and maps.

    A set's order is random.

    Raises:
        ValueError: the value holds one of them.
    """
    if isinstance(value, bool):
        raise ValueError(f"{key}: a number or text is expected, and not {str(value).lower()}")
    if isinstance(value, set | frozenset):
        raise ValueError(f"{key}: a list is expected, and not a set, which has no order")
    if isinstance(value, list | tuple):
        for entry in value:
            _refuse_bools(key, entry, is_map)
    if is_map and isinstance(value, dict):
        for name, entry in value.items():
            _refuse_bools(f"{key}.{name}", entry, is_map)


def _find_repeated(values: Sequence[Any]) -> Any:
    """Return the first repeated text or number.

    Sections check themselves.
    """
    seen: set[Any] = set()
    for value in values:
        if isinstance(value, str | int | float):
            if value in seen:
                return value
            seen.add(value)
    return None


def require_own_names(key: str, entries: Sequence[tuple[str, str]]) -> None:
    """Refuse a name given to two entries of a list.

    Args:
        key: key of the list.
        entries: each entry's name, and its nature in words.

    Raises:
        ValueError: the message has the name and both places.
    """
    places: dict[str, str] = {}
    for n, (name, what) in enumerate(entries):
        place = f"{key}.{n} ({what})"
        if name in places:
            raise ValueError(
                f"'{shorten(name)}' is the name of {places[name]} and of {place}: "
                "put each under a name of its own"
            )
        places[name] = place


INT = 2**31 - 1
"""The largest whole number in the tables' columns k, n and rank."""

MAX_CURVE = 10_000
"""Most cut-offs for `curve`: each is a row of `metrics`."""

Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=INT)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Location = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$")]
"""A path or URI, or the name of a column."""


Duration = Annotated[str, Field(pattern="^[1-9][0-9]{0,11}([smhdw]|mo)$")]
"""Seconds, minutes, hours, days, weeks or months: `30m`, `7d`, `1mo`."""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "mo": 31 * 86_400}
"""Seconds in each unit; a month has those of the longest one."""
CALENDAR_UNITS = ("d", "w", "mo")
"""Units counted by a calendar: such days can have 23 hours."""
MAX_SECONDS = 10_000 * 366 * UNITS["d"]
"""Seconds in all years of possible dates."""


def make_error(message: str, hint: str) -> ValueError:
    """Return an error for validators; `parse` passes its hint on."""
    return ValueError(f"{message}\n  hint: {hint}")


def parse_duration(duration: str) -> tuple[int, str]:
    """Return a duration's number and unit.

    >>> parse_duration("12mo")
    (12, 'mo')
    """
    number = re.match("[0-9]+", duration)
    assert number is not None
    return int(number[0]), duration[number.end() :]


def seconds(duration: str) -> int:
    """Return a duration such as `7d` in seconds.

    A month counts 31 days.

    >>> seconds("2h")
    7200
    """
    number, unit = parse_duration(duration)
    return number * UNITS[unit]


def require_day_text(day: Any) -> Any:
    """Return a day or instant, but refuse a number.

    pydantic would take it for seconds since 1970.

    Raises:
        ValueError: a number, or a text of digits such as 2026.
    """
    if isinstance(day, int | float) or (isinstance(day, str) and re.fullmatch(r"\s*[-+]?[\d_.]+\s*", day)):
        raise ValueError("write a day like 2026-01-31, or a time like 2026-01-31T12:00:00+00:00")
    return day


def shorten(text: str, longest: int = 300) -> str:
    """Return a user's text, cut if it is too long."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} letters)"


def parse(model: type[M], document: Any, where: str, separator: str = ": ") -> M:
    """Check a document; its first mistake becomes a ConfigError.

    The error names file, key and nearest key.

    Args:
        model: the class of the document.
        document: keys and values.
        where: a file, or a place in one.
        separator: the text between that and the key.

    Raises:
        ConfigError: the document has a mistake.
    """
    try:
        return model.model_validate(document, context={"where": where})
    except ValidationError as error:
        raise ConfigError(*_explain(model, error, f"{where}{separator}")) from None
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: text that is not Unicode", "write it as UTF-8") from None


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> tuple[str, str]:
    mistakes = error.errors()
    # A misspelt key is also missing; its name and the nearest known name tell more.
    first = next((mistake for mistake in mistakes if mistake["type"] == "extra_forbidden"), mistakes[0])
    path = shorten(".".join(str(step) for step in first["loc"]) or "(top)")
    hint = ""
    if first["type"] == "extra_forbidden":
        hint = nearest(str(first["loc"][-1]), _keys_at(model, first["loc"][:-1]))
    elif first["type"] in ("literal_error", "union_tag_invalid"):
        context = first.get("ctx", {})
        known = re.findall(r"'([^']+)'", str(context.get("expected", context.get("expected_tags"))))
        value = first["input"].get("kind") if isinstance(first["input"], dict) else first["input"]
        hint = nearest(str(value), known)
    text, _, more = first["msg"].removeprefix("Value error, ").partition("\n  hint: ")
    message, hint = shorten(text), hint or more
    others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}{path}: {message}{others}", hint


def _keys_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the keys allowed at a validation error's path."""
    current: Any = model
    for step in path:
        fields = getattr(current, "model_fields", {})
        options = _models_in(fields[step].annotation if step in fields else current)
        tagged = [o for o in options if step in get_args(_kind_annotation(o))]
        current = (tagged or options or [current])[0] if tagged or len(options) == 1 else options
    chosen = current if isinstance(current, list) else [current]
    fields = [pair for option in chosen for pair in getattr(option, "model_fields", {}).items()]
    return [field.alias or name for name, field in fields]


def _kind_annotation(model: Any) -> Any:
    field = getattr(model, "model_fields", {}).get("kind")
    return field.annotation if field else None


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, list):
        return annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is None:
        return []
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def digest(*parts: Any, length: int = 16) -> str:
    """Return a short hash of anything in JSON.

    Equal parts give equal hashes on any machine.
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
