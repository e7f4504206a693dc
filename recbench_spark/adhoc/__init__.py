"""Evaluation of tables that a caller passes, without a config file, on Spark or in this process."""
