"""Runtime of a job: Spark's session, Java, journal, failures."""
