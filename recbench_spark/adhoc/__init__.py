"""Evaluation of inputs that a caller passes directly, without a config file: by Spark or in process."""
