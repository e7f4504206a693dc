"""Start `recbench_spark.commands.compare`; `python jobs/compare.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.compare import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
