"""Read published data sets, and what Spark alone reads.

Everything is checked when it is read, in one pass that counts problems. A missing file or column, a value
that is not a number, or a row without ids becomes an error that names file, column and an example. No row
is dropped silently, and no problem appears later as a Java stack trace.

    logs             logs and tables that only Spark reads; `sources.log_sources` opens all other logs,
                     `sources.table_pieces` all other tables
    published        rounds, propensities and negatives of published data sets, without Spark
    paths            local and remote paths, errors of Spark
"""
