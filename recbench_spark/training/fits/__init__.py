"""Many fits as tasks of Spark: the log as files of a host, what a task does, how tasks are dealt out."""
