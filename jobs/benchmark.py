"""`python jobs/benchmark.py --help`; what it does stands in `recbench_spark/commands/benchmark.py`."""

from recbench_spark import cli
from recbench_spark.commands.benchmark import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
