#!/usr/bin/env bash
# One environment per library whose numbers a preset gives, for `pytest -m slow tests/libraries`.
# Apart from ours, because their pins exclude each other. Names given as arguments: only those.
# MLlib is in our own environment; Elliot is in no package registry.
set -euo pipefail
uv=${UV:-.venv/bin/uv}
folder=${RECBENCH_LIBRARIES:-.venv-libraries}
python=${LIBRARIES_PYTHON:-3.11}
# lenskit 2026 asks for 3.12.5, warprec for 3.12.
newer=${LIBRARIES_NEWER_PYTHON:-3.13}

[ -x "$uv" ] || command -v "$uv" >/dev/null || {
  echo "error: no uv at $uv" >&2; echo "  hint: run \`make setup\` first, or set UV" >&2; exit 1; }

wanted=" $* "
make_env() {
  local name=$1; shift
  [[ "$wanted" == "  " || "$wanted" == *" $name "* ]] || return 0
  [ -x "$folder/$name/bin/python" ] || "$uv" venv --quiet --python "$python" "$folder/$name"
  "$uv" pip install --quiet --python "$folder/$name/bin/python" "$@"
  echo "$name: ready"
}

make_env ranx ranx==0.3.21 pyarrow==19.0.1
make_env trec_eval pytrec-eval-terrier==0.5.11
make_env cornac cornac==3.0.1
make_env replay replay-rec==0.22.0
make_env rectools rectools==0.19.0 pyarrow==19.0.1
make_env lenskit-2025 lenskit==2025.8.1
python=$newer make_env lenskit lenskit==2026.4.0
# Only their metrics are wanted: warprec without Ray, and torchmetrics as warprec takes it.
python=$newer make_env warprec torch==2.15.0 torchmetrics==1.8.2 numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 \
  scikit-learn==1.9.1 narwhals==2.29.0 loguru==0.7.3 pydantic==2.14.4 tabulate==0.10.0
python=$newer make_env warprec --no-deps warprec==2.2.8
make_env torchmetrics torch==2.15.0 torchmetrics==1.8.2
make_env sklearn scikit-learn==1.9.1
# Only its metrics are wanted, not its server.
make_env mlflow numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 scikit-learn==1.9.1
make_env mlflow --no-deps mlflow==3.18.0
# Its MAP follows no definition; it imports what pandas 3 has not.
make_env evidently evidently==0.7.23 pandas==2.3.3
# recbole says np.float, which numpy 1.24 removed.
make_env recbole recbole==1.2.1 numpy==1.23.5 pandas==1.5.3 scipy==1.10.1 scikit-learn==1.2.2
# Only their metrics are wanted, not the deep models they depend on.
make_env recommenders --no-deps recommenders==1.2.1
make_env recommenders numpy==2.4.6 pandas==2.3.3 scipy==1.17.1 scikit-learn==1.7.2
make_env recpack --no-deps recpack==0.3.6
make_env recpack numpy==1.26.4 pandas==2.2.3 scipy==1.13.1 scikit-learn==1.5.2 tqdm==4.67.1 PyYAML==6.0.2
# For jobs/bench/splits.py and jobs/bench/lists.py, replay-spark also for tests/libraries/test_frames.py: each with a Spark it supports.
make_env replay-spark replay-rec==0.22.0 pyspark==4.2.1 psutil
make_env recommenders-spark --no-deps recommenders==1.2.1
make_env recommenders-spark pyspark==3.5.9 numpy==1.26.4 pandas==2.2.3 scipy==1.13.1 scikit-learn==1.5.2 setuptools==80.9.0 psutil
# For jobs/bench/ranking.py.
make_env faiss faiss-cpu==1.13.0 numpy==2.4.6
# For jobs/bench/ratings.py and tests/libraries/test_ratings.py; implicit also for its preset. myfm asks for pkg_resources of old setuptools.
make_env surprise scikit-surprise==1.1.4 numpy==1.26.4 pandas==2.3.3
make_env myfm setuptools==79.0.1 myfm==0.3.6 numpy==1.26.4 scipy==1.17.1
make_env implicit implicit==0.7.3 numpy==1.26.4 scipy==1.17.1 pandas==2.3.3 pyarrow==19.0.1
