"""Start `recbench` where a launcher wants a file: `spark-submit jobs/recbench.py COMMAND FLAGS`."""

from recbench_spark.commands.dispatch import main

if __name__ == "__main__":
    main()
