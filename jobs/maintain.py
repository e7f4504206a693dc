"""Start `recbench_spark.commands.maintain`; `python jobs/maintain.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.maintain import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
