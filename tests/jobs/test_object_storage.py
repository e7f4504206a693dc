"""Jobs on a warehouse in object storage without Java, and what they say where the storage fails."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from recbench_spark import cli
from recbench_spark.commands import embed, evaluate, nightly, query
from recbench_spark.errors import StoreError
from recbench_spark.runtime.journal import Journal
from recbench_spark.sources import arrow_files
from recbench_spark.storage.objects import list_objects, read_bytes, write_bytes, write_table
from recbench_spark.storage.uris import shorten_path
from tests.object_storage import S3Server

ANSWER_SECONDS = 60
CONFIGS = Path(__file__).resolve().parents[2] / "conf" / "benchmarks"
NOBODY = "http://127.0.0.1:9"
"""An address of this machine where nobody listens."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("inputs"), np.random.default_rng(4)
    for name, n in (("lists", 200), ("truth", 60)):
        table = pa.table({"user_id": rng.integers(0, 20, n), "item_id": rng.integers(0, 30, n)})
        if name == "lists":
            table = table.append_column("score", pa.array(rng.random(n)))
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def argv(files: Path, warehouse: str, *more: str) -> list[str]:
    given = [f"--{name}={files / name}.parquet" for name in ("lists", "truth")]
    words = ["--warehouse", warehouse, "--model", "m", "--bootstrap", "20", "--logical-date", "2026-01-01"]
    return [*given, *words, *more]


def run(module: object, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(module.main, module.parser(), [*words])
    return int(ended.value.code or 0)


def fail(capsys: pytest.CaptureFixture[str], module: object, *words: str) -> str:
    """Run a job that fails, and return what it prints to standard error."""
    began = time.monotonic()
    assert run(module, *words) != 0
    assert time.monotonic() - began < ANSWER_SECONDS
    printed = capsys.readouterr().err
    assert "Traceback" not in printed and "secret" not in printed
    return printed


def test_inputs_on_object_storage_are_read_as_those_of_a_folder(
    files: Path, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = pq.read_table(files / "truth.parquet")
    text = "user_id,item_id\n" + "".join(
        f"{row['user_id']},{row['item_id']}\n" for row in truth.to_pylist()
    )
    write_bytes(f"{bucket}/in/truth.csv.gz", gzip.compress(text.encode()))
    write_table(f"{bucket}/in/lists/part=1/a.parquet", pq.read_table(files / "lists.parquet"))
    write_bytes(f"{bucket}/in/lists/_SUCCESS", b"x")
    printed, identities = [], []
    write_table(str(tmp_path / "in/lists/part=1/a.parquet"), pq.read_table(files / "lists.parquet"))
    write_bytes(str(tmp_path / "in/truth.csv.gz"), gzip.compress(text.encode()))
    for root, warehouse in ((bucket, "w1"), (str(tmp_path), "w2")):
        words = argv(files, str(tmp_path / warehouse))[2:]
        places = [f"--lists={root}/in/lists", f"--truth={root}/in/truth.csv.gz"]
        assert run(evaluate, *places, *words, "--engine", "local") == 0
        said = capsys.readouterr().out
        printed.append(re.sub(r"\S+/\S+|\d+\.\d+ s\b|\d{8}T\w+(-\w+)*|\s+", " ", said))
        identities.append(arrow_files.identity(f"{root}/in/lists"))
    assert printed[0] == printed[1] and identities[0] == identities[1]
    assert arrow_files.open_path(f"{bucket}/in/truth.csv.gz").table.num_rows == len(truth)


def test_evaluate_and_query_print_what_they_print_for_a_folder(
    files: Path, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for root in (str(tmp_path / "w"), f"{bucket}/team/w"):
        assert run(evaluate, *argv(files, root)) == 0
        numbers = capsys.readouterr().out
        for statement in ("leaderboard", "latest_metrics"):
            assert run(query, "--warehouse", root, "--format", "csv", statement) == 0
        assert (
            run(query, "--warehouse", root, "--engine", "local", "SELECT count(*) AS n FROM user_metrics")
            == 0
        )
        text = numbers + capsys.readouterr().out
        text = re.sub(r"\d{8}T\w+(-\w+)*|\d{4}-\d\d-\d\d \d\d:\S+|\S+/w\b", "", text)
        printed.append(re.sub(r"\d+\.\d+ s\b|\s+", " ", text))
    assert printed[0] == printed[1]
    assert "ndcg" in printed[0]


def test_a_dry_run_writes_reads_writes_again_and_removes(
    files: Path, bucket: str, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(evaluate, *argv(files, f"{bucket}/w", "--dry-run")) == 0
    assert "an object was written, read, refused a second time, and removed" in capsys.readouterr().out
    left = [path for path in (s3_server.folder / bucket.removeprefix("s3://")).rglob("*") if path.is_file()]
    assert not left


def test_a_wrong_address_is_said(files: Path, bucket: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)
    night = ["--config", "demo", "--warehouse", bucket, "--logical-date", "2026-01-01"]
    question = ["--warehouse", bucket, "leaderboard"]
    for module, words in ((evaluate, argv(files, bucket)), (query, question), (nightly, night)):
        printed = fail(capsys, module, *words)
        assert f"bucket {bucket} at {NOBODY} does not answer" in printed and "AWS_ENDPOINT_URL" in printed


def test_a_missing_bucket_is_said(files: Path, bucket: str, capsys) -> None:
    for words in (argv(files, "s3://nobodys-bucket/w"), argv(files, "s3://nobodys-bucket/w", "--dry-run")):
        assert "there is no bucket s3://nobodys-bucket at " in fail(capsys, evaluate, *words)


@pytest.mark.parametrize("disabled", ["true", "false"])
def test_missing_credentials_are_said(
    files: Path, bucket: str, disabled: str, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", disabled)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", NOBODY)  # no other machine is asked
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert "no credentials were found" in fail(capsys, query, "--warehouse", bucket, "leaderboard")


def test_wrong_credentials_are_said_with_their_place(
    files: Path, bucket: str, tmp_path, monkeypatch, capsys
) -> None:
    keys = tmp_path / "credentials"
    keys.write_text("[team]\naws_access_key_id = tester\naws_secret_access_key = wrong-secret\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_PROFILE", "team")
    printed = fail(capsys, query, "--warehouse", bucket, "leaderboard")
    assert f"refuses this user: credentials were found in profile team of {keys}" in printed
    keys.write_text("[team]\naws_access_key_id = tester\naws_secret_access_key = secret-of-the-tester\n")
    assert "no results in warehouse" in fail(capsys, query, "--warehouse", bucket, "leaderboard")


def test_an_empty_warehouse_is_said(bucket: str, capsys) -> None:
    printed = fail(capsys, query, "--warehouse", f"{bucket}/nothing", "leaderboard")
    assert f"no results in warehouse {bucket}/nothing" in printed


def test_models_with_files_are_refused_in_a_catalog_before_work(tmp_path, capsys) -> None:
    benchmark = yaml.safe_load((CONFIGS / "graph.yaml").read_text(encoding="utf-8"))
    config = tmp_path / "trained.yaml"
    sage = {"models": [{"name": "sage", "kind": "graphsage"}], "gates": []}
    config.write_text(yaml.safe_dump({**benchmark, **sage}), encoding="utf-8")
    words = ["--config", str(config), "--warehouse", "cat.schema", "--logical-date", "2026-01-01"]
    printed = fail(capsys, nightly, *words)
    assert "model sage: its files are mapped, and --warehouse cat.schema is no folder" in printed


def test_graphs_on_storage_that_does_not_answer_end_before_spark(bucket: str, monkeypatch, capsys) -> None:
    words = ["--edges", "edges.csv", "--warehouse", bucket, "--name", "x"]
    assert "edges.csv" in fail(capsys, embed, *words)  # the bucket answers, and the edges are looked for
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)
    assert f"bucket {bucket} at {NOBODY} does not answer" in fail(capsys, embed, *words)


def test_a_log_in_object_storage_is_written_whole_and_seldom(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(io.StringIO())
    journal.write_beside(f"{bucket}/w", "night")
    (name,) = list_objects(f"{bucket}/w/logs")
    assert re.fullmatch(r"night-[0-9a-f]{12}\.jsonl", name)
    for stage in ("splits", "items"):
        with journal.stage(stage, "work") as counts:
            counts["rows"] = 3
    assert read_bytes(f"{bucket}/w/logs/{name}") == b"", "a request for each line"
    monkeypatch.setattr("recbench_spark.runtime.journal.REMOTE_SECONDS", 0.0)
    journal.record("report")
    lines = (read_bytes(f"{bucket}/w/logs/{name}") or b"").decode().splitlines()
    assert [json.loads(line)["stage"] for line in lines] == ["splits", "items", "report"]
    monkeypatch.setattr("recbench_spark.runtime.journal.REMOTE_SECONDS", 60.0)
    journal.record("end")
    journal.close()
    assert (read_bytes(f"{bucket}/w/logs/{name}") or b"").count(b"\n") == 4
    other = Journal(io.StringIO())
    other.write_beside(f"{bucket}/w", "night")
    assert len(list(list_objects(f"{bucket}/w/logs"))) == 2, "two jobs write over each other"
    other.close()


def test_a_log_on_a_storage_that_cannot_hold_it_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot write the log viewfs://host/log"):
        Journal(io.StringIO()).write_to("viewfs://host/log")


def test_a_path_below_a_uri_is_stored_relative_to_it() -> None:
    root = "s3://bucket/team/w"
    for same in (root, "s3a://bucket/team/w"):
        assert shorten_path(f"{root}/fit_files/logs/x", same, "fit_files") == "fit_files/logs/x"
    for other in (f"{root}/splits/x", f"{root}x/fit_files/x", "/data/fit_files/x"):
        assert shorten_path(other, root, "fit_files") == other
    assert shorten_path(f"{root}/fit_files/x", None, "fit_files") == f"{root}/fit_files/x"
