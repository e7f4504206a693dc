"""Evaluation of what a system hands over, without a config file: on Spark, or in this process."""
