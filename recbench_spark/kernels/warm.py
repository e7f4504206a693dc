"""Old path of `recbench_spark.runtime.compile_kernels`, for `python -m recbench_spark.kernels.warm`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("recbench_spark.runtime.compile_kernels", run_name="__main__")
