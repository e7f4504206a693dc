"""Start `recbench_spark.commands.report`; `python jobs/report.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.report import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
