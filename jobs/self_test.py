"""Start `recbench self-test`, for schedules that name this file."""

import sys

from recbench_spark.commands.dispatch import start_command

if __name__ == "__main__":
    start_command("self-test", sys.argv[1:])
