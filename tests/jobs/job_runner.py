"""Run jobs one after another in this process, with one session of Spark: `python -m tests.jobs.job_runner`.

Standard input is JSON, a list of `[name, flags]`. Each job adds a line of JSON to standard output: name,
exit code, standard output and standard error. The environment names the settings of Spark.
"""

from __future__ import annotations

import json
import sys
import time

from tests.faults.in_process import job_and_output


def main() -> None:
    """Run the jobs until one fails."""
    for name, flags in json.load(sys.stdin):
        started = time.monotonic()
        code, output, errors = job_and_output(name, flags)
        row = {"job": name, "code": code or 0, "output": output, "errors": errors}
        print(json.dumps({**row, "seconds": round(time.monotonic() - started, 1)}), flush=True)
        if code:
            return


if __name__ == "__main__":
    main()
