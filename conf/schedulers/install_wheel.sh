#!/usr/bin/env bash
# Installs the wheel on one host of a cluster, as a bootstrap action of EMR or an initialization action of Dataproc:
# install_wheel.sh s3://bucket/recbench_spark-0.2.0-py3-none-any.whl. Dataproc passes no arguments: there the cluster's
# metadata `recbench-wheel` has the name. Spark and Delta are the platform's own, so the extra [spark] is left out.
set -euo pipefail
wheel=${1:-$(/usr/share/google/get_metadata_value attributes/recbench-wheel)}
folder=$(mktemp -d)
more=()
case $wheel in
  s3://*)
    # EMR 7 has Python 3.9 by default, and beside 3.11 no packages; pandas 3 was not tried with Spark 3.5.
    command -v python3.11 >/dev/null || sudo dnf install -y python3.11 python3.11-pip
    python=python3.11
    more=("pandas<3")
    aws s3 cp "$wheel" "$folder/"
    ;;
  gs://*)
    python=/opt/conda/default/bin/python
    gsutil cp "$wheel" "$folder/"
    ;;
  *)
    python=${PYTHON:-python3}
    cp "$wheel" "$folder/"
    ;;
esac
# What the platform has of these stays: pip ends with an error rather than change it.
"$python" -m pip list --format freeze | grep -iE '^(numpy|pandas|pyarrow|pyspark|delta-spark)==' >"$folder/own.txt" || true
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -w "$site" ] && sudo= || sudo=sudo
$sudo "$python" -m pip install --quiet -c "$folder/own.txt" "$folder/${wheel##*/}" "${more[@]}"
# Else each process would compile them at its first use.
$sudo "$python" -m recbench_spark.night.compile_kernels || echo "kernels are compiled at their first use"
