"""Start `recbench_spark.commands.query`; `python jobs/query.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.query import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
