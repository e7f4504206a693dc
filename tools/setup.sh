#!/usr/bin/env bash
# Makes the virtual environment with the pinned packages: `core` is what the demo needs, `all` also has Spark,
# torch and what tests need. uv installs torch's 5 GB in under a minute; pip is only used to get uv.
set -euo pipefail
venv=${1:-.venv}
what=${2:-all}
python=${PYTHON:-python3}

fail() { echo "error: $1" >&2; echo "  hint: $2" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null ||
  fail "Python 3.11 or newer is needed, and $python is $("$python" --version 2>&1)" "PYTHON=/path/to/python3.11 make demo"
[ "$what" = core ] || command -v java >/dev/null || [ -n "${JAVA_HOME:-}" ] ||
  fail "no Java found" "install Java 17 (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" ||
  fail "cannot make a virtual environment" "Debian: apt-get install python3-venv"
size=$([ "$what" = core ] && echo "1 GB" || echo "5 GB, a minute or more")
echo "installing into $venv ($size)"
[ -x "$venv/bin/uv" ] || "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=0.5"
if [ "$what" = core ]; then
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" -c requirements.txt -e .
else
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" -r requirements.txt
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps -e .
fi
# Containers often forbid Python to keep its bytecode: each process would then compile torch's sources anew,
# for seconds. What our processes load is compiled here, without parts that none of them loads.
echo "compiling packages"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
unused='/(tests?|torch/(_inductor|onnx|utils/(benchmark|tensorboard)))/|/py312_intrinsics'
for name in torch sympy mpmath networkx numba llvmlite numpy pandas pyarrow pyspark py4j scipy pydantic delta deltalake; do
  [ ! -d "$packages/$name" ] || "$venv/bin/python" -m compileall -q -j 0 -x "$unused" "$packages/$name" || true
done
echo "compiling kernels"
# Ranking takes half of the time: a core compiles it, and another what else the demo needs, or all else.
compile=("$venv/bin/python" -m recbench_spark.night.compile_kernels)
"${compile[@]}" ranking &
"${compile[@]}" core metrics models auctions
[ "$what" = core ] || "${compile[@]}" analyses graphs retrieval splits
wait $!
[ "$what" = all ] || exit 0
echo "archiving Java's classes"
"$venv/bin/python" -m tools.java_classes >/dev/null 2>&1 || echo "no archive of Java's classes: jobs start without it"
