"""recbench-spark: exact, leak-free, reproducible evaluation of recommenders on Spark and Delta."""

__version__ = "0.1.0"
