"""What all sections share: strict models, names, one message for a mistake, the hash of settings."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
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
"""What a name may look like before it becomes part of SQL, a path or a partition value."""


SECRET = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|signature|\bsas\b|\bsig\b|\bauth"
    r"|(?:access|account|api|private|storage).?key|\bkeys?\b|key(?:tab|store|file)"
)
"""Words of an option or of a parameter that holds a secret."""

KEY_SHAPES = (
    r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}",  # AWS: ids of access keys
    r"AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{28}|GOOG[A-Z0-9]{20,57}",  # Google: keys and tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"[A-Za-z0-9/+]{86}==|[\w~.-]{3}[0-9]Q~[\w~.-]{31,34}",  # Azure: keys of accounts, of applications
    r"dapi[0-9a-f]{32}|gh[opsur]_[A-Za-z0-9]{36}|github_pat_\w{22,}|hf_[A-Za-z0-9]{34}",
    r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+",  # JSON Web Tokens
)
"""Keys and tokens that are known by their shape, wherever they stand."""

SECRET_KEY = re.compile(r"(?:(?<=://)|(?<![\w/+.-]))[A-Za-z0-9/+]{40}(?![\w/+=.-])")
"""The form of a secret of AWS; a path may have it too."""

MIN_CHANGES, LONGEST_WORD = 15, 5
"""Of 40 letters by chance: at least so many changes between small letters, large ones and digits, 25 on
average, and at most so many small letters in a row. Names and paths, made of words, have longer rows."""

SECRETS = re.compile(
    r"://[^/@\s:]*:(?!\d+(?:[/,]|$))\S*@"  # user:password@; a port has a slash or nothing after it
    r"|https?://[^/\s@]+@"
    rf"|[?&;][^=&;\s]*(?:{SECRET})[^=&;\s]*="
    rf"|(?-i:(?<![A-Za-z0-9])(?:{'|'.join(KEY_SHAPES)})(?![A-Za-z0-9]))",
    re.IGNORECASE,
)
"""Text that bears a password, a key or a signature."""

SECRETS_HINT = (
    "settings are printed and stored beside results: secrets belong to Spark (spark.hadoop.* in a "
    "properties file of your own), to the cluster's roles, or to the environment"
)


def holds_secret(text: str) -> bool:
    """Return whether a text bears a password, a key, a token or a signature.

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
    """ConfigError, which does not repeat it, for text that bears a secret; what is printed must not."""
    if holds_secret(text):
        raise ConfigError(f"{where} holds a password, key or token", SECRETS_HINT)


MAY_REPEAT = ("ratio", "final", "samples")
"""Fields whose numbers are no names: shares of parts, widths of dense layers."""


class Strict(BaseModel):
    """Frozen, no key that is not known, no number that is not finite, no secret, nothing named twice.

    `added_later`: fields that came after warehouses were written; they are left out of what is stored
    and hashed while they hold their default, so that no name changes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    added_later: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _drop_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        for name in self.added_later & found.keys():
            if getattr(self, name) == fields[name].default:
                del found[name]
        return found

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
        for name, found in self:
            if name not in MAY_REPEAT and isinstance(found, tuple):
                twice = _find_repeated(found)
                if twice is not None:
                    raise ValueError(f"{name}: {twice!r} stands there twice")
        return self


def _field_texts(value: Any, is_map: bool) -> list[str]:
    """Return texts of a field, of its list or of its map with its keys; sections look at their own."""
    if is_map and isinstance(value, dict):
        value = [*value, *value.values()]
    held = value if isinstance(value, list | tuple) else [value]
    return [text for text in held if isinstance(text, str)]


def _accepts_bool(model: type[BaseModel], key: Any) -> bool:
    """Whether a field is true or false: pydantic takes these for 1 and 0 elsewhere."""
    field = model.model_fields.get(key) if isinstance(key, str) else None
    return field is None or bool in _types_in(field.annotation)


def _types_in(annotation: Any) -> set[Any]:
    """The types that an annotation is made of: of `tuple[bool | int, ...]` these two."""
    inner = get_args(annotation)
    return set().union(*map(_types_in, inner)) if inner else {annotation}


def _is_map(model: type[BaseModel], key: Any) -> bool:
    """Whether a field is keys and values, and no section, or map of sections, with rules of their own."""
    field = model.model_fields.get(key) if isinstance(key, str) else None
    if field is None or get_origin(field.annotation) is not dict:
        return False
    return not any(
        isinstance(leaf, type) and issubclass(leaf, BaseModel) for leaf in _types_in(field.annotation)
    )


def _refuse_bools(key: Any, value: Any, is_map: bool = False) -> None:
    """ValueError for true and false, also inside lists and maps, and for sets, whose order is chance."""
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
    """The first text or number that was there before; sections have rules of their own."""
    seen: set[Any] = set()
    for value in values:
        if isinstance(value, str | int | float):
            if value in seen:
                return value
            seen.add(value)
    return None


INT = 2**31 - 1
"""The largest whole number of the tables' columns k, n, rank."""

MAX_CURVE = 10_000
"""Cut-offs of `curve`: each is a row of `metrics`."""

Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=INT)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Location = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$")]
"""A path or URI, or the name of a column."""


Duration = Annotated[str, Field(pattern="^[1-9][0-9]{0,11}[smhdw]$")]
"""Seconds, minutes, hours, days or weeks: `30m`, `7d`."""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_SECONDS = 10_000 * 366 * UNITS["d"]
"""Seconds of all the years that a date can have."""


def make_error(message: str, hint: str) -> ValueError:
    """Return the error that a validator raises, with a hint that `parse` hands on."""
    return ValueError(f"{message}\n  hint: {hint}")


def seconds(duration: str) -> int:
    """`7d` in seconds.

    >>> seconds("2h")
    7200
    """
    return int(duration[:-1]) * UNITS[duration[-1]]


def require_day_text(day: Any) -> Any:
    """Days and instants are written out: pydantic takes 2026 for seconds since 1970."""
    if isinstance(day, int | float) or (isinstance(day, str) and re.fullmatch(r"\s*[-+]?[\d_.]+\s*", day)):
        raise ValueError("write a day like 2026-01-31, or a time like 2026-01-31T12:00:00+00:00")
    return day


def shorten(text: str, longest: int = 300) -> str:
    """Text that the user wrote, no longer than one likes to read."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} letters)"


def parse(model: type[M], document: Any, where: str, separator: str = ": ") -> M:
    """Check a document; the first mistake becomes a ConfigError with file, key and nearest key.

    Args:
        model: what the document is to be.
        document: keys and values.
        where: a file, or a place in one.
        joined: what stands between that and the key.
    """
    try:
        return model.model_validate(document, context={"where": where})
    except ValidationError as error:
        raise ConfigError(*_explain(model, error, f"{where}{separator}")) from None
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: text that is not Unicode", "write it as UTF-8") from None


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> tuple[str, str]:
    found = error.errors()
    # A key that is misspelt is also missing: its name, with the nearest one, says more.
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    path = shorten(".".join(str(step) for step in first["loc"]) or "(top)")
    hint = ""
    if first["type"] == "extra_forbidden":
        hint = nearest(str(first["loc"][-1]), _keys_at(model, first["loc"][:-1]))
    elif first["type"] in ("literal_error", "union_tag_invalid"):
        context = first.get("ctx", {})
        known = re.findall(r"'([^']+)'", str(context.get("expected", context.get("expected_tags"))))
        given = first["input"].get("kind") if isinstance(first["input"], dict) else first["input"]
        hint = nearest(str(given), known)
    text, _, more = first["msg"].removeprefix("Value error, ").partition("\n  hint: ")
    message, hint = shorten(text), hint or more
    others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}{path}: {message}{others}", hint


def _keys_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The keys allowed at a path of a validation error."""
    current: Any = model
    for step in path:
        fields = getattr(current, "model_fields", {})
        options = _models_in(fields[step].annotation if step in fields else current)
        tagged = [o for o in options if step in get_args(_kind_annotation(o))]
        current = (tagged or options or [current])[0] if tagged or len(options) == 1 else options
    chosen = current if isinstance(current, list) else [current]
    return [name for option in chosen for name in getattr(option, "model_fields", {})]


def _kind_annotation(model: Any) -> Any:
    found = getattr(model, "model_fields", {}).get("kind")
    return found.annotation if found else None


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, list):
        return annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is None:
        return []
    return [found for inner in get_args(annotation) for found in _models_in(inner)]


def digest(*parts: Any, length: int = 16) -> str:
    """A short hash of anything JSON can hold; equal parts, equal hash, on every machine."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
