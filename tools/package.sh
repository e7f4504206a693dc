#!/usr/bin/env bash
# What spark-submit ships: dist/recbench_spark.zip (--py-files), a wheel (environments, images), and the
# job files. The zip is the wheel under another name: Spark's workers import from .zip and not from .whl.
set -euo pipefail
venv=${1:-.venv}
out=${2:-dist}
mkdir -p "$out"
rm -f "$out"/recbench_spark-*.whl
"$venv/bin/uv" build --quiet --wheel --out-dir "$out" .
rm -rf build
wheel=$(ls "$out"/recbench_spark-*.whl)
cp "$wheel" "$out/recbench_spark.zip"
echo "$wheel"
echo "$out/recbench_spark.zip"
