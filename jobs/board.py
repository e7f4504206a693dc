"""Start `recbench_spark.commands.board`; `python jobs/board.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.board import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
