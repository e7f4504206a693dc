"""The benchmark file: strict, frozen, checked before Spark starts.

An unknown key, a value of the wrong type or out of range is a ConfigError that names the file, the
path of the key and the nearest known key. The application's settings live here; Spark's stay with
spark-submit; secrets live in neither.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from recbench_spark.definitions import Definition, make_definition
from recbench_spark.errors import ConfigError, nearest

M = TypeVar("M", bound=BaseModel)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What a name may look like before it becomes part of SQL, a path or a partition value."""

BENCHMARKS = Path(__file__).resolve().parent.parent / "conf" / "benchmarks"


class Strict(BaseModel):
    """Frozen, and no key that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Share = Annotated[float, Field(ge=0, le=1)]


class World(Strict):
    """The generated world: who is there, how strong the loop is."""

    users: Annotated[int, Field(ge=1)] = 1000
    items: Annotated[int, Field(ge=2)] = 300
    interactions: Annotated[int, Field(ge=1000, le=10**8)] = 60_000
    open_loop: Annotated[int, Field(ge=0)] = 20_000
    loop: Share = 0.8
    periods: Annotated[int, Field(ge=1, le=50)] = 4
    seed: int = 42


class Dataset(Strict):
    """Where the log lies and how it is read.

    `columns` maps our names (user_id, item_id, rating, event_time, part) to the log's; `attributes`
    lists further columns kept to slice by; `users` and `items` are tables of attributes.
    """

    name: Name
    reader: Literal[
        "world", "movielens_100k", "movielens_1m", "movielens_latest", "csv", "parquet", "delta"
    ]
    path: str | None = None
    columns: dict[str, str] = {}
    attributes: tuple[str, ...] = ()
    options: dict[str, str] = {}
    time_unit: Literal["s", "ms", "us", "timestamp"] = "s"
    duplicates: Literal["keep_last", "keep_first", "error"] = "keep_last"
    world: World = World()

    @model_validator(mode="after")
    def _path_given(self) -> Dataset:
        if self.reader != "world" and not self.path:
            raise ValueError(f"reader '{self.reader}' needs 'path'")
        return self


class Split(Strict):
    """Order x holdout, in the papers' codes: RO/TO random or temporal, RS/LS ratio or leave one out.

    `ratio`: shares of train, valid, test of each user's rows, for RS. LS holds out the last row for
    test and, where `valid` is true, the last but one for validation.
    """

    protocol: Literal["RO_RS", "TO_RS", "RO_LS", "TO_LS", "given"] = "RO_RS"
    ratio: tuple[Share, Share, Share] = (0.8, 0.0, 0.2)
    valid: bool = False
    seed: int = 42

    @field_validator("ratio")
    @classmethod
    def _sums_to_one(cls, ratio: tuple[float, float, float]) -> tuple[float, float, float]:
        if abs(sum(ratio) - 1) > 1e-9 or ratio[0] == 0 or ratio[2] == 0:
            raise ValueError("train, valid, test must sum to 1, with train and test above 0")
        return ratio

    def describe(self) -> str:
        """The protocol in one short string, as it stands in `runs.split`."""
        shares = "/".join(f"{share:g}" for share in self.ratio)
        kind = {"RS": shares, "LS": "with valid" if self.valid else "test only"}
        return f"{self.protocol} {kind.get(self.protocol[3:], '')} seed {self.seed}".replace("  ", " ")


class Provenance(Strict):
    """Who ran it, where a figure is from, what was searched."""

    source: Literal["own", "baseline", "rerun", "published"] = "baseline"
    ran_by: str | None = None
    year: Annotated[int, Field(ge=1990, le=2100)] | None = None
    search_space: dict[str, tuple[float, ...]] = {}
    budget: str | None = None


class _Model(Strict):
    name: Name
    version: str = "1"
    provenance: Provenance = Provenance()


class RandomModel(_Model):
    """Every (user, item) a uniform score by hash."""

    kind: Literal["random"]
    seed: int = 42


class PopularModel(_Model):
    """Training interactions of the item."""

    kind: Literal["popular"]


class ItemKnnModel(_Model):
    """Cosine item-kNN: each item keeps its most similar items, whose presence in a history counts."""

    kind: Literal["item_knn"]
    neighbours: Annotated[int, Field(ge=1)] = 100
    max_history: Annotated[int, Field(ge=2)] = 1000


class AlsModel(_Model):
    """Spark MLlib's alternating least squares."""

    kind: Literal["als"]
    rank: Annotated[int, Field(ge=1, le=2048)] = 32
    iterations: Annotated[int, Field(ge=1)] = 10
    regularization: Annotated[float, Field(ge=0)] = 0.05
    alpha: Annotated[float, Field(ge=0)] = 1.0
    implicit: bool = True
    seed: int = 42


class TruthModel(_Model):
    """The generated world's true factors: the ceiling."""

    kind: Literal["truth"]


class EmbeddingsModel(_Model):
    """Vectors another system made: (user_id, vector[, bias]) and (item_id, vector[, bias])."""

    kind: Literal["embeddings"]
    users: str
    items: str
    similarity: Literal["dot", "cosine"] = "dot"


class ScoresModel(_Model):
    """A table (user_id, item_id, score) another system made."""

    kind: Literal["scores"]
    path: str


class ListsModel(_Model):
    """Ranked lists (user_id, item_id, rank or score) another system made."""

    kind: Literal["lists"]
    path: str


class PublishedModel(_Model):
    """Figures from a publication, kept beside our own: `ndcg@10: 0.31` or `rmse: 0.77`."""

    kind: Literal["published"]
    figures: dict[str, float]


Model = Annotated[
    RandomModel
    | PopularModel
    | ItemKnnModel
    | AlsModel
    | TruthModel
    | EmbeddingsModel
    | ScoresModel
    | ListsModel
    | PublishedModel,
    Field(discriminator="kind"),
]


class Slice(Strict):
    """A label for each truth item: metrics are given for each value of it.

    `popularity` (head, torso, tail, cold) and `cold_user` are always known; `column` names an
    attribute of the log, or of the users' or items' table at `path`.
    """

    key: Name
    of: Literal["popularity", "cold_user", "log", "users", "items"]
    column: str | None = None
    path: str | None = None


class Bootstrap(Strict):
    """Resampling of users behind the intervals."""

    replicates: Annotated[int, Field(ge=0, le=100_000)] = 1000
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    seed: int = 42


class Draw(Strict):
    """Sampled candidates (definition.candidates uniform or popularity): how many, for whom, which seed.

    `per`: `n` items for each user, or for each of the user's held-out items.
    """

    n: Annotated[int, Field(ge=1)] = 100
    per: Literal["user", "positive"] = "user"
    seed: int = 42


DEFAULT_METRICS = ("hit", "precision", "recall", "f1", "map", "mrr", "ndcg", "auc", "coverage")


class Evaluation(Strict):
    """What is measured: metrics, cut-offs, definition, slices."""

    metrics: tuple[str, ...] = DEFAULT_METRICS
    k: tuple[int, ...] = (1, 3, 5, 10, 20)
    curve: bool = False
    parts: tuple[Name, ...] = ("test",)
    preset: str | None = None
    definition: dict[str, Any] = {}
    candidates_path: str | None = None
    draw: Draw = Draw()
    slices: tuple[Slice, ...] = (Slice(key="popularity", of="popularity"),)
    bootstrap: Bootstrap = Bootstrap()
    user_metrics: bool = True

    @field_validator("k")
    @classmethod
    def _positive(cls, k: tuple[int, ...]) -> tuple[int, ...]:
        if not k or min(k) < 1:
            raise ValueError("cut-offs must be whole numbers of at least 1")
        return tuple(sorted(set(k)))

    @field_validator("slices")
    @classmethod
    def _keys_differ(cls, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
        if len({cut.key for cut in slices}) < len(slices):
            raise ValueError("give each slice a key of its own")
        return slices

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The cut-offs, or every 1..max(k) where the whole curve is kept."""
        return tuple(range(1, max(self.k) + 1)) if self.curve else self.k

    def resolve(self) -> Definition:
        """The definition: preset, then single axes."""
        return make_definition(self.preset, self.definition)


class Benchmark(Strict):
    """One benchmark file: one complete protocol."""

    name: Name
    description: str = ""
    dataset: Dataset
    split: Split = Split()
    models: tuple[Model, ...]
    evaluation: Evaluation = Evaluation()
    headline: str = "ndcg@10"
    ran_by: str | None = None

    @field_validator("models")
    @classmethod
    def _names_differ(cls, models: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [model.name for model in models]
        if not names or len(set(names)) < len(names):
            raise ValueError("give at least one model, each under a name of its own")
        return models


def load_benchmark(source: str, overrides: Sequence[str] = ()) -> Benchmark:
    """A benchmark file by path, or by its name under conf/benchmarks, with `a.b=value` replaced."""
    path = find_benchmark(source)
    document = _read_yaml(path)
    for override in overrides:
        _apply(document, override)
    return parse(Benchmark, document, str(path))


def find_benchmark(source: str) -> Path:
    """The file meant by a path or by a name under conf/benchmarks."""
    for path in (Path(source), BENCHMARKS / f"{source}.yaml"):
        if path.is_file():
            return path
    known = [path.stem for path in BENCHMARKS.glob("*.yaml")]
    raise ConfigError(f"no benchmark file '{source}'", nearest(source, known))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected keys and values", "see conf/benchmarks/demo.yaml")
    return document


def _apply(document: dict[str, Any], override: str) -> None:
    """Set one `a.b.0.c=value`; the value is read as YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: expected KEY=VALUE", "e.g. --set split.seed=7")
    *parents, last = key.split(".")
    place: Any = document
    for step in parents:
        place = _descend(place, step, override)
    value = _read_value(text, override)
    if isinstance(place, list):
        place[_position(place, last, override)] = value
    else:
        place[last] = value


def _read_value(text: str, override: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override}: '{text}' is not a YAML value") from None


def _descend(place: Any, step: str, override: str) -> Any:
    if isinstance(place, list):
        return place[_position(place, step, override)]
    if not isinstance(place, dict) or not isinstance(place.get(step, {}), dict | list):
        raise ConfigError(f"--set {override}: '{step}' is not a section of the benchmark file")
    return place.setdefault(step, {})


def _position(place: list[Any], step: str, override: str) -> int:
    """An entry of a list by its number or, for models and slices, by its name."""
    names = [entry.get("name", entry.get("key")) for entry in place if isinstance(entry, dict)]
    if step in names:
        return names.index(step)
    if step.isdigit() and int(step) < len(place):
        return int(step)
    raise ConfigError(f"--set {override}: no entry '{step}'", nearest(step, map(str, names)))


def parse(model: type[M], document: Any, where: str) -> M:
    """Check a document; the first mistake becomes a ConfigError with file, key and nearest key."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ConfigError(*_explain(model, error, where)) from None


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> tuple[str, str]:
    first = error.errors()[0]
    path = ".".join(str(step) for step in first["loc"]) or "(top)"
    hint = ""
    if first["type"] == "extra_forbidden":
        hint = nearest(str(first["loc"][-1]), _keys_at(model, first["loc"][:-1]))
    elif first["type"] in ("literal_error", "union_tag_invalid"):
        context = first.get("ctx", {})
        known = re.findall(r"'([^']+)'", str(context.get("expected", context.get("expected_tags"))))
        given = first["input"].get("kind") if isinstance(first["input"], dict) else first["input"]
        hint = nearest(str(given), known)
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {path}: {message}{more}", hint


def _keys_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The keys allowed at a path of a validation error."""
    current: Any = model
    for step in path:
        fields = getattr(current, "model_fields", {})
        options = _models_in(fields[step].annotation if step in fields else current)
        tagged = [o for o in options if step in get_args(_kind(o))]
        current = (tagged or options or [current])[0] if tagged or len(options) == 1 else options
    chosen = current if isinstance(current, list) else [current]
    return [name for option in chosen for name in getattr(option, "model_fields", {})]


def _kind(model: Any) -> Any:
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
