"""Evaluation of tables that a caller passes directly, without a config file, on Spark or in this
process."""
