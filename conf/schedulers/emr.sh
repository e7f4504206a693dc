#!/usr/bin/env bash
# One night on EMR on EC2, on a cluster that ends with it: emr.sh [DATE]. docs/how_to/platforms.md says what was tried.
# BUCKET=s3://bucket/recbench ROLE=EMR_EC2_DefaultRole SUBNET=subnet-1 conf/schedulers/emr.sh 2026-01-31
# Before it, once for each version:
#   make package && aws s3 cp --recursive dist "$BUCKET/dist" && aws s3 cp --recursive jobs "$BUCKET/jobs"
#   aws s3 cp conf/schedulers/install_wheel.sh "$BUCKET/" && aws s3 cp my.yaml "$BUCKET/"
set -euo pipefail
day=${1:-$(date -u -d yesterday +%F)}
wheel=recbench_spark-0.2.0-py3-none-any.whl

# EMR 7 has Python 3.9 by default: install_wheel.sh brings 3.11 to every host. Spark and Delta are EMR's own.
configurations='[
  {"Classification": "delta-defaults", "Properties": {"delta.enabled": "true"}},
  {"Classification": "spark-defaults", "Properties": {
    "spark.pyspark.python": "/usr/bin/python3.11",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096"}}]'
steps='[{"Name": "night", "Type": "CUSTOM_JAR", "Jar": "command-runner.jar", "ActionOnFailure": "TERMINATE_CLUSTER",
  "Args": ["spark-submit", "--deploy-mode", "cluster", "--conf", "spark.yarn.maxAppAttempts=1",
    "--files", "'$BUCKET'/my.yaml", "'$BUCKET'/jobs/recbench.py", "nightly",
    "--config", "my.yaml", "--warehouse", "'$BUCKET'/warehouse", "--logical-date", "'$day'"]}]'

aws emr create-cluster --name "recbench-$day" --release-label "${RELEASE:-emr-7.13.0}" --applications Name=Spark \
  --service-role "${SERVICE_ROLE:-EMR_DefaultRole}" --ec2-attributes "InstanceProfile=$ROLE,SubnetId=$SUBNET" \
  --instance-type "${MACHINE:-m7i.2xlarge}" --instance-count "${MACHINES:-4}" --log-uri "$BUCKET/logs/" \
  --bootstrap-actions "Path=$BUCKET/install_wheel.sh,Args=[$BUCKET/dist/$wheel]" \
  --configurations "$configurations" --steps "$steps" --auto-terminate
