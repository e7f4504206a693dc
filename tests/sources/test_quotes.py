"""Quotes that are not closed: the hint's option loses no row, and no option swallows a row uncounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from recbench_spark.config import Dataset
from recbench_spark.errors import DataError
from recbench_spark.sources import arrow_files
from tests.labelled import read_log

HEADER = "user_id\titem_id\trating\n"
SWALLOWED = {
    "to the end of the file": HEADER + '1\ta\t1\n2\t"b\t2\n3\tc\t3\n4\td\t4\n5\te\t5\n',
    "to a quote that closes": HEADER + '1\ta\t1\n2\t"b\t2\n3\tc\t3\n4\td"\t4\n5\te\t5\n',
    "to a quote that opens": HEADER + '1\ta\t1\n2\t"b\t2\n3\tc\t3\n4\t"d\t4\n5\te\t5\n',
    "two rows": HEADER + '1\ta\t1\n2\t"b\t2\n3\tc"\t3\n4\td\t4\n5\te\t5\n',
    "a last column": 'user_id\titem_id\n1\ta\n2\t"b\n3\tc\n4\td\n5\te\n',
    "a first column": 'user_id\titem_id\n1\ta\n"2\tb\n3"\tc\n4\td\n5\te\n',
}  # fmt: skip
"""Five rows each, of which a quote swallows some where fields may go on in the next line."""


@pytest.mark.parametrize("name", SWALLOWED)
def test_the_hint_of_an_open_quote_loses_no_row(spark, tmp_path: Path, name: str) -> None:
    path = tmp_path / "log.tsv"
    path.write_text(SWALLOWED[name])

    def log(**options: str) -> Dataset:
        return Dataset(name="d", reader="csv", path=str(path), options=options, bad_rows="reject")

    with pytest.raises(DataError) as error:
        read_log(spark, log())
    assert "set dataset.options quote: ''" in error.value.hint and "multiLine" not in error.value.hint
    assert read_log(spark, log(quote="")).count() == 5
    with pytest.raises(DataError, match="a quoted field holds whole rows of the file") as error:
        read_log(spark, log(multiLine="true"))
    assert "dataset.options quote: ''" in error.value.hint
    with pytest.raises(DataError) as error:
        arrow_files.read_table(str(path), ["user_id", "item_id"], "truth")
    assert "a quoted field continues in the next line" in error.value.message


def test_a_field_that_really_goes_on_is_read_with_multiline(spark, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('user_id,item_id,rating,text\n1,a,5,"good,\nreally\n"\n2,b,4,"x"\n')
    log = Dataset(name="d", reader="csv", path=str(path))
    with pytest.raises(DataError) as error:
        read_log(spark, log.model_copy(update={"options": {"quote": '"'}}))
    assert "not 4 fields" in error.value.message
    with pytest.raises(DataError) as error:
        read_log(spark, log)
    assert "multiLine: 'true'" in error.value.hint
    multiline = log.model_copy(update={"options": {"multiLine": "true"}, "attributes": ("text",)})
    rows = read_log(spark, multiline).collect()
    assert {row.attributes["text"] for row in rows} == {"good,\nreally\n", "x"}


def test_lines_of_comment_are_counted(spark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id\n#1,a\n2,b\n")
    log = Dataset(name="d", reader="csv", path=str(path), options={"comment": "#"})
    assert read_log(spark, log).count() == 1
    assert "1 lines begin with '#' and are no rows" in capsys.readouterr().err
