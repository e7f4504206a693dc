"""Start `recbench` by `python -m recbench_spark`."""

from recbench_spark.commands.dispatch import main

if __name__ == "__main__":
    main()
