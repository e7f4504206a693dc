"""Start `recbench_spark.commands.evaluate`; `python jobs/evaluate.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.evaluate import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
