"""Start `recbench_spark.commands.neighbourhoods`; `jobs/neighbourhoods.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.neighbourhoods import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
