"""`python jobs/neighbourhoods.py --help`; what it does stands in `commands/neighbourhoods.py`."""

from recbench_spark import cli
from recbench_spark.commands.neighbourhoods import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
