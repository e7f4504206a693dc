"""recbench-spark: exact, leak-free, reproducible evaluation of recommenders.

It runs on Spark and Delta, and without them.
"""

import sys
from typing import TYPE_CHECKING, Any

from recbench_spark.moved import add_old_paths

__version__ = "0.2.0"
__all__ = ["__version__", "compare", "evaluate", "evaluate_frames", "evaluate_predictions"]

if sys.version_info < (3, 11):  # noqa: UP036 (pip asks; for a zip this line does)
    print(
        f"error: recbench-spark needs Python 3.11 or newer, and this is {sys.version.split()[0]}\n"
        "  hint: docs/how_to/platforms.md says how each platform gets a newer one",
        file=sys.stderr,
    )
    sys.exit(2)

add_old_paths()

if TYPE_CHECKING:
    from recbench_spark.evaluation.compare import compare
    from recbench_spark.evaluation.evaluate import evaluate, evaluate_predictions
    from recbench_spark.evaluation.in_process import evaluate_frames


def __getattr__(name: str) -> Any:
    """Import the public functions on first use.

    Workers import a kernel and must not load all of Spark.
    """
    if name in __all__ and f"{__name__}.evaluation" not in sys.modules:  # each later call comes here, too
        from recbench_spark.core.extras import check_core  # noqa: PLC0415

        check_core()
    if name in ("evaluate", "evaluate_predictions"):
        from recbench_spark.evaluation import evaluate as evaluator  # noqa: PLC0415

        return getattr(evaluator, name)
    if name == "compare":
        from recbench_spark.evaluation import compare as comparer  # noqa: PLC0415

        return comparer.compare
    if name == "evaluate_frames":
        from recbench_spark.evaluation import in_process  # noqa: PLC0415

        return in_process.evaluate_frames
    raise AttributeError(f"module 'recbench_spark' has no attribute '{name}'")
