"""Start `recbench_spark.commands.benchmark`; `python jobs/benchmark.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.benchmark import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
