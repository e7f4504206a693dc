"""Start `recbench_spark.commands.nightly`; `python jobs/nightly.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.nightly import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
