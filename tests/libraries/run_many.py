"""Run a script of this folder on many inputs in one process: lines of JSON on standard input and output."""

import contextlib
import io
import runpy
import sys

inputs = sys.stdin.read().splitlines()
for given in inputs:
    sys.stdin, printed = io.StringIO(given), io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(sys.argv[1], run_name="__main__")
    print(printed.getvalue().splitlines()[-1], flush=True)
