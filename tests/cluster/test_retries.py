"""A split whose tasks die at first and are tried again (`local[2,4]`) is the split of untroubled tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest
from deltalake import DeltaTable

from recbench_spark.config import Split
from tests.cluster.processes import ROOT, properties, start_process
from tests.log_schema import LOG_SCHEMA
from tests.splits.test_splits import label_log, random_log

pytestmark = [pytest.mark.usefixtures("own_jvm"), pytest.mark.slow]

SPLITS = [
    Split(protocol="TO_LS", valid=True),
    Split(protocol="RO_RS", ratio=(0.8, 0.0, 0.2)),
    Split(protocol="netflix"),
    Split(group="global", ratio=(0.8, 0.1, 0.1)),
    Split(holdout="folds", folds=5, fold=2),
]

JOB = """
import os, signal, sys
from pathlib import Path
from pyspark import TaskContext
from recbench_spark.storage import blocks
from recbench_spark.config import Dataset
from recbench_spark.sources import columnar
from tests.splits.test_splits import label_log
from recbench_spark.runtime.session import get_session
from recbench_spark.night import split as splitting
from recbench_spark.storage.store import Store
from tests.cluster.test_retries import SPLITS

folder = Path(sys.argv[1])


def dying(word, given=lambda batches: batches):
    # kill -9 of the worker at a task's first attempt, with rows read and none of them handed on.
    def run(batches, **settings):
        context = TaskContext.get()
        for batch in given(batches, **settings):
            if context.attemptNumber() == 0:
                (folder / f"{word}-{context.stageId()}-{context.partitionId()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch
    return run


spark = get_session()
log = spark.read.parquet(str(folder / "log"))
for n, split in enumerate(SPLITS):
    read = log.mapInArrow(dying("read"), log.schema)
    labels = label_log(read, split, "keep_last")
    labels.mapInArrow(dying("labelled"), labels.schema).write.parquet(str(folder / f"split{n}"))

# Once more by Python tasks alone: these die with blocks dealt, and with their file written.
columnar.deal_owners = dying("dealt", columnar.deal_owners)
blocks.finish_tables = dying("written", blocks.finish_tables)
splitting.open_any_log = None
dataset = Dataset(name="log", reader="parquet", path=str(folder / "plain"), time_unit="us")
for n, split in enumerate(SPLITS):
    splitting.write_labelled_log(Store(spark, str(folder / "warehouse")), dataset, split, str(n))
"""


def test_tasks_that_fail_and_are_tried_again_leave_the_split_as_it_is(spark, tmp_path: Path) -> None:
    """Workers die while the log is read, and while labelled rows are written."""
    rows = [(*row[:2], float(n), *row[3:]) for n, row in enumerate(random_log(seed=5) * 2)]
    log = spark.createDataFrame(rows, LOG_SCHEMA)
    log.repartition(3).write.parquet(str(tmp_path / "log"))
    unlabelled = log.where("part IS NULL").drop("part", "attributes")
    unlabelled.repartition(3).write.parquet(str(tmp_path / "plain"))
    conf = properties(tmp_path / "spark.conf", spark_master="local[2,4]")
    command = [sys.executable, "-c", JOB, str(tmp_path)]
    env = {"RECBENCH_SPARK_PROPERTIES": str(conf), "PYTHONPATH": str(ROOT)}
    with start_process(command, tmp_path / "job.log", tmp_path, **env) as job:
        assert job.popen.wait(300) == 0, job.remarks[-4000:]
    killed = [path.name.partition("-")[0] for path in tmp_path.glob("*-*-*")]
    assert killed.count("read") >= 3 * len(SPLITS) and killed.count("labelled") >= len(SPLITS)
    assert killed.count("dealt") >= 2 * len(SPLITS) and killed.count("written") >= 2 * len(SPLITS)
    for n, split in enumerate(SPLITS):
        split_rows, wanted = (
            pd.read_parquet(tmp_path / f"split{n}"),
            label_log(log, split, "keep_last").toPandas(),
        )
        assert len(split_rows) == len(rows) // 2 == len(wanted)
        pd.testing.assert_frame_equal(in_order(split_rows), in_order(wanted), check_dtype=False)
        splits = DeltaTable(tmp_path / "warehouse" / "splits").to_pandas([("split_id", "=", str(n))])
        alone = wanted[wanted.part != "open_loop"]
        pd.testing.assert_frame_equal(in_order(splits[alone.columns]), in_order(alone), check_dtype=False)


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort by user and item, without the (empty) attributes."""
    return rows.drop(columns="attributes").sort_values(["user_id", "item_id"]).reset_index(drop=True)
