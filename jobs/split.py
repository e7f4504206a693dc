"""Start `recbench_spark.commands.split`; `python jobs/split.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.split import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
