"""Start `recbench_spark.commands.bundle`; `python jobs/bundle.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.bundle import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
