"""Start `recbench_spark.commands.tune`; `python jobs/tune.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.tune import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
