"""Start `recbench_spark.commands.multiverse`; `python jobs/multiverse.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.multiverse import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
