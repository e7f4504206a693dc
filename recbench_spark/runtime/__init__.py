"""Runtime of a job: Spark's session, Java, the journal of progress, and kernels compiled in advance."""
