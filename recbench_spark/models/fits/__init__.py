"""Many fits as tasks of Spark: the log as files of a host, the work of a task, the start of tasks."""
