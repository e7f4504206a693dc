"""Rules for other systems' tables, which both engines apply.

They look at column names and at counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recbench_spark.core import ids
from recbench_spark.core.checks import Check
from recbench_spark.errors import DataError
from recbench_spark.schemas import ID_NAMES, require_names

VALUE_TYPES = {"rank": "long", "score": "double"}

EXACT_LIMIT = float(1 << 53)
"""First whole number from which on float64 cannot represent every whole number."""

WHOLE_NUMBER = r"^[+-]?[0-9]{16,}$"
"""Pattern for a text, without blanks around it, whose whole number may be beyond 2^53."""


def value_columns(names: Sequence[str], kind: str) -> dict[str, str]:
    """Return the value column: column -> type.

    Lists have a rank, or else a score.

    Raises:
        SchemaError: neither a rank nor a score.
    """
    if kind == "lists" and "rank" in names:
        return {"rank": VALUE_TYPES["rank"]}
    require_names(names, ["user_id", "item_id", "score"], kind)
    return {"score": VALUE_TYPES["score"]}


def refuse_unusable(wrong: Mapping[str, int], what: str) -> None:
    """Raise DataError for the first column with an unusable value."""
    for name, n in wrong.items():
        if n:
            hint = (
                MISSING_ID
                if name in ID_NAMES
                else "leave these rows out, or mend the system that wrote them"
            )
            message = f"{what}: {n} rows whose {name} is {UNUSABLE.get(name, BEYOND_FLOAT64)}"
            raise DataError(message, hint)


MISSING_ID = (
    "leave these rows out; to count a place as a miss, give it an id that no other item has, such as 'none'"
)

BEYOND_FLOAT64 = "NULL, NaN, infinite or, of whole numbers, beyond 2^53"
UNUSABLE = {
    **dict.fromkeys(ID_NAMES, "NULL, NaN or an empty field"),
    "rank": "a rank below 1, NULL or not a whole number, or 2^53 and more, where float64 merges ranks",
}
"""Unusable values in a column, in words."""


def refuse_different_widths(dims: Sequence[int], what: Sequence[str]) -> None:
    """Raise DataError if two vector tables have different widths."""
    if dims[0] != dims[1]:
        message = f"{what[0]} has {dims[0]} dimensions, {what[1]} has {dims[1]}"
        raise DataError(message, "both must be of one model")


def check_width(shortest: int, longest: int, rows: int, not_null: int, distinct: int, *, what: str) -> int:
    """Return the vectors' common length. Raises DataError without one."""
    if not rows:
        raise DataError(f"{what}: no vectors", "check the path and the ids")
    if not_null < rows:
        raise DataError(f"{what}: {rows - not_null} of {rows} vectors are NULL", "leave these rows out")
    if shortest != longest:
        raise DataError(f"{what}: vectors of {shortest} to {longest} dimensions", "give one length")
    if distinct < rows:
        raise DataError(f"{what}: {rows - distinct} ids occur more than once", "keep one vector per id")
    return int(longest)


def report_common_ids(
    overlap: ids.IdOverlap, sides: ids.IdSides, name: str, what: tuple[str, str], *, must: bool
) -> list[Check]:
    """Report the result of `check_common_ids`.

    Raises:
        DataError: no id is common, or hardly any, and they would meet in another spelling.
    """
    if not (overlap.fails(must) or overlap.few):
        return _warn_other_spelling(overlap, sides, name, what)
    ids.refuse_other_spelling(overlap, sides)
    left, right = sides.read_examples()
    if overlap.fails(must):
        overlap.refuse(left, right)
    apart, detail = 1 - overlap.share, overlap.describe(left, right)
    return [Check(f"{name} of {what[0]} not in {what[1]}", apart, 1 - ids.FEW, "warning", detail)]


def _warn_other_spelling(
    overlap: ids.IdOverlap, sides: ids.IdSides, name: str, what: tuple[str, str]
) -> list[Check]:
    """Warn if nearly all ids would match in another spelling."""
    if overlap.share >= ids.NEARLY_ALL:
        return []
    respelling = ids.find_other_spelling(overlap, sides, ids.NEARLY_ALL)
    if respelling is None:
        return []
    (meeting, without), (left, right) = respelling, sides.drop_common().read_examples()
    detail = f"{meeting.common} of {min(meeting.n)} would be common without {without}; "
    detail += overlap.describe(left, right)
    title = f"{name} of {what[0]} and {what[1]} in two spellings"
    return [Check(title, 1 - overlap.share, 1 - ids.NEARLY_ALL, "warning", detail)]


def name_known_items(kind: str) -> str:
    """Return words for the items which an evaluation knows.

    The items come from vectors, or from training and the rows.
    """
    return "item embeddings" if kind == "embeddings" else f"train and {kind}"


MOST = 0.5
"""Share of the truth's items that may be unknown without a warning."""


def report_unknown_truth(overlap: ids.IdOverlap, sides: ids.IdSides, known: str) -> list[Check]:
    """Report how many truth items a known catalogue has.

    Args:
        overlap: of the truth's items and the catalogue's, in this order.
        sides: as in `report_common_ids`.
        known: words for the catalogue.

    Raises:
        DataError: the catalogue has no truth item.
    """
    what = ("truth", known)
    if checks := report_common_ids(overlap, sides, "item_id", what, must=True):
        return checks
    unknown = 1 - overlap.common / max(overlap.n[0], 1) if min(overlap.n) else 0.0
    if unknown <= MOST:
        return []
    left, right = sides.read_examples()
    detail = f"most items of the truth cannot be found; {overlap.describe(left, right)}"
    return [Check(f"item_id of truth not in {known}", unknown, MOST, "warning", detail)]
