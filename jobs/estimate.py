"""Start `recbench_spark.commands.estimate`; `python jobs/estimate.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.estimate import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
