"""Start `recbench_spark.commands.embed`; `python jobs/embed.py --help` lists its flags."""

from recbench_spark import cli
from recbench_spark.commands.embed import main, parser

if __name__ == "__main__":
    cli.run(main, parser())
