#!/usr/bin/env bash
# One night on EMR Serverless: emr_serverless.sh [DATE]. docs/how_to/platforms.md says what was tried.
# BUCKET=s3://bucket/recbench APPLICATION=id ROLE=arn:aws:iam::123456789012:role/name conf/schedulers/emr_serverless.sh
# Before it, once for each version, on Amazon Linux 2023 with Python 3.11 (`dnf install -y python3.11 python3.11-pip`):
#   python3.11 -m venv env && env/bin/pip install venv-pack 'pandas<3' recbench_spark-0.2.0-py3-none-any.whl
#   env/bin/venv-pack -p env -o env.tar.gz && aws s3 cp env.tar.gz "$BUCKET/"
#   aws s3 cp --recursive jobs "$BUCKET/jobs" && aws s3 cp my.yaml "$BUCKET/"
set -euo pipefail
day=${1:-$(date -u -d yesterday +%F)}
delta=/usr/share/aws/delta/lib

parameters="--files $BUCKET/my.yaml"
parameters+=" --conf spark.archives=$BUCKET/env.tar.gz#environment"
for variable in driverEnv.PYSPARK_DRIVER_PYTHON driverEnv.PYSPARK_PYTHON; do
  parameters+=" --conf spark.emr-serverless.$variable=./environment/bin/python"
done
parameters+=" --conf spark.executorEnv.PYSPARK_PYTHON=./environment/bin/python"
parameters+=" --conf spark.jars=$delta/delta-spark.jar,$delta/delta-storage.jar"
parameters+=" --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"
parameters+=" --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
parameters+=" --conf spark.sql.session.timeZone=UTC --conf spark.sql.execution.arrow.maxRecordsPerBatch=4096"
# Disk of a worker: item matrices and shuffle files lie there.
parameters+=" --conf spark.emr-serverless.driver.disk=50g --conf spark.emr-serverless.executor.disk=100g"

aws emr-serverless start-job-run --application-id "$APPLICATION" --execution-role-arn "$ROLE" \
  --name "recbench-$day" --execution-timeout-minutes 720 --job-driver '{"sparkSubmit": {
    "entryPoint": "'"$BUCKET"'/jobs/recbench.py",
    "entryPointArguments": ["nightly", "--config", "my.yaml", "--warehouse", "'"$BUCKET"'/warehouse",
      "--logical-date", "'"$day"'"],
    "sparkSubmitParameters": "'"$parameters"'"}}'
