"""Start `recbench_spark.commands.init`; `python jobs/init.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.init import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
