"""Steps of a night. Each step reads tables and writes tables, so that it can run again alone."""
