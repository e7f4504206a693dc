#!/usr/bin/env bash
# The Python environment as dist/env.tar.gz, for spark-submit --archives dist/env.tar.gz#env with
# PYSPARK_PYTHON=./env/bin/python. Every host needs the same Python 3.11 where this one has it
# (a virtual environment holds packages, not the interpreter); where it has not, use conda-pack or an image.
set -euo pipefail
venv=${1:-.venv}
out=${2:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
"$venv/bin/uv" venv --quiet --relocatable --python "$("$venv/bin/python" -c 'import sys; print(sys._base_executable)')" "$work/env"
"$venv/bin/uv" pip install --quiet --link-mode copy --python "$work/env/bin/python" -r requirements.txt "$(ls "$out"/recbench_spark-*.whl)[hdfs]"
tar -C "$work/env" -czf "$out/env.tar.gz" .
echo "$out/env.tar.gz"
