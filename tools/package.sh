#!/usr/bin/env bash
# What spark-submit ships: dist/recbench_spark.zip (--py-files), a wheel (environments, images), and the
# job files. The zip is the wheel under another name: Spark's workers import from .zip and not from .whl.
# The build fetches setuptools into a folder of its own, and needs nothing of `make setup`.
set -euo pipefail
venv=${1:-.venv}
out=${2:-dist}
uv=$(command -v "$venv/bin/uv" || command -v uv || true)
mkdir -p "$out"
rm -f "$out"/recbench_spark-*.whl
rm -rf build
if [ -n "$uv" ]; then
  "$uv" build --quiet --wheel --out-dir "$out" .
else
  "${PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$out" .
fi
rm -rf build
wheel=$(ls "$out"/recbench_spark-*.whl)
cp "$wheel" "$out/recbench_spark.zip"
echo "$wheel"
echo "$out/recbench_spark.zip"
