"""Start `recbench_spark.commands.propensity`; `python jobs/propensity.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.propensity import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
