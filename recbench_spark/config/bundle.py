"""Describe a submission bundle: its content, benchmark, author and search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from recbench_spark.core.strict_settings import Name, Strict
from recbench_spark.models.settings import Provenance


class Bundle(Strict):
    """The file `bundle.json`: a submission and how it was made.

    `task`: for `predictions`, `predictions.parquet` holds user_id, item_id, prediction and, with folds,
    `fold`; for `rankings`, `lists.parquet` holds user_id, item_id, rank. `method`: the method's one name.
    `log_id`, `split`: the log and split behind the file. `rows`: number of rows in the file; `content`:
    their hash, in any order. `digest`: a hash over all other keys, `content` among them, and so over the
    rows; it detects accidents. It is no signature: whoever packs a bundle can name anybody as `who`. Format
    1 has no digest.
    """

    format: Literal[1, 2] = 2
    """Version of the file's form."""
    name: Name
    """Name of the submission."""
    task: Literal["predictions", "rankings"]
    who: Annotated[str, Field(min_length=1)]
    """Person or team that submits."""
    ran_by: Literal["inventor", "rival", "rerun", "ours"] = "rerun"
    """Role of the person who ran the method."""
    method: Annotated[str, Field(min_length=1)]
    kind: str = "unknown"
    """Kind of model, where this package has it."""
    settings: dict[str, bool | int | float | str | dict[str, float] | None] = {}
    """Settings of the fit."""
    dims: int | None = None
    """Length of the vectors, if the method has any."""
    benchmark: Name
    """Name in the benchmark file."""
    log_id: str
    split: str
    provenance: Provenance = Provenance()
    """Origin of the figure, and the search behind it."""
    rows: Annotated[int, Field(ge=1)]
    content: str
    code_version: str
    """Version of the code which packed the bundle."""
    digest: str | None = None

    @model_validator(mode="after")
    def _check_digest(self) -> Bundle:
        if (self.digest is None) != (self.format == 1):
            raise ValueError("format 2 has a digest, format 1 has none")
        return self

    @property
    def evidence(self) -> str:
        """The bundle's name on a board: its digest.

        Format 1 has none, and takes the hash of its rows.
        """
        return f"bundle {self.digest or self.content}"
