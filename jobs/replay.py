"""Start `recbench_spark.commands.replay`; `python jobs/replay.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.replay import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
