"""Values of MLflow's retriever metrics: JSON on standard input, JSON on standard output (see inputs.py).

The package is not initialised, because that imports its server; the modules of its metrics are.
"""

import importlib.util
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path

import pandas as pd

if "mlflow" not in sys.modules:
    root = Path(importlib.util.find_spec("mlflow").submodule_search_locations[0])
    for name in ("", ".metrics", ".utils"):
        package = types.ModuleType(f"mlflow{name}")
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[package.__name__] = package
    validation = types.ModuleType("mlflow.utils.validation")
    validation._is_numeric = lambda value: isinstance(value, int | float)
    sys.modules[validation.__name__] = validation

from mlflow.metrics import metric_definitions

given = json.load(sys.stdin)
lists = {user: [item for item, _ in rows] for user, rows in given["lists"].items()}
truth = {user: [item for item, _ in rows] for user, rows in given["truth"].items()}


def values(users):
    columns = (pd.Series([of.get(user, []) for user in users]) for of in (lists, truth))
    predictions, targets = columns
    result = {}
    for name in ("precision", "recall", "ndcg"):
        for k in given["ks"]:
            measure = getattr(metric_definitions, f"_{name}_at_k_eval_fn")(k)
            result[f"{name}@{k}"] = float(measure(predictions, targets).aggregate_results["mean"])
    return result


results = [{"set": {}, "values": values(lists)}, {"set": {"users": "truth"}, "values": values(truth)}]
print(json.dumps({"version": version("mlflow"), "results": results}))
