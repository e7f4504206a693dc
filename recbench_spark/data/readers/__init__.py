"""Reading what others wrote: interaction logs, and tables of lists, scores, truth, embeddings.

Everything is checked where it is read, in one pass of counting: a missing file or column, a value
that is not a number, a row without ids becomes an error that names file, column and an example. Nothing
is dropped silently, and nothing surfaces later as a Java stack trace.

    logs             what every log goes through, and the formats that are tables of their own
    movielens        100K to 32M, latest
    netflix          the prize's text
    published        splits that come as files: Coat, Yahoo R3, LightGCN, NCF
    rounds           Open Bandit rounds
    tables           lists, scores, truth, embeddings, attributes
    values, ids      a column and how it can be wrong; whether ids are numbers or text
    files            paths, lines, fields
"""

from recbench_spark.data.readers.bandit_feedback import read_rounds
from recbench_spark.data.readers.ids import id_order
from recbench_spark.data.readers.logs import PARTS, Log, open_log, read_log
from recbench_spark.data.readers.published import read_negatives, read_propensities
from recbench_spark.data.readers.tables import read_table

__all__ = [
    "PARTS",
    "Log",
    "id_order",
    "open_log",
    "read_log",
    "read_negatives",
    "read_propensities",
    "read_rounds",
    "read_table",
]
