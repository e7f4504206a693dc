"""A dry run refuses what would fail in the run, and flags without an effect, without Spark."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark import cli
from recbench_spark.commands import (
    benchmark,
    board,
    bundle,
    embed,
    estimate,
    evaluate,
    maintain,
    multiverse,
    neighbourhoods,
    nightly,
    propensity,
    query,
    report,
    split,
    tune,
)
from recbench_spark.schemas import RUNS, SPLITS
from recbench_spark.storage.arrow_store import ArrowStore

DAY = ("--logical-date", "2026-01-01")
RATING = """
name: stars
dataset: {name: stars, reader: csv, path: log.csv}
split: {holdout: folds, folds: 3}
models: [{name: sgd, kind: sgd_mf}]
evaluation: {task: rating}
search: {spaces: {sgd: {rates: {low: 0.001, high: 0.05, log: true}}}}
"""
RANKING = """
name: shop
dataset: {name: shop, reader: csv, path: log.csv}
models: [{name: popular, kind: popular}, {name: paper, kind: published, figures: {ndcg@10: 0.3}}]
evaluation: {k: [5, 10]}
headline: ndcg@10
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log, edges, tables and two benchmark files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    texts = {"stars.yaml": RATING, "shop.yaml": RANKING, "edges.csv": "src,dst\n1,2\n2,3\n"}
    texts["log.csv"] = "user_id,item_id,rating,watched_at\n" + "1,2,3,4\n2,3,4,5\n" * 10
    texts |= {
        "matrix.csv": "user_id,item_id,prediction\n1,1,2\n",
        "chances.csv": "item_id,propensity\n1,1\n",
    }
    texts |= {"chosen.csv": "user_id,item_id,rank\n1,1,1\n", "truth.csv": "user_id,item_id\n1,1\n"}
    texts |= {"rounds.csv": "reward,propensity,item_id\n1,1,1\n", "ids.txt": "1\n"}
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    pq.write_table(pa.table({"src": [1], "dst": [2]}), "edges.parquet")
    return tmp_path


def run(job: ModuleType, line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), line.split())
    return int(ended.value.code or 0), capsys.readouterr().err


IN_W = "--warehouse w --dry-run"
NIGHT = f"--config shop.yaml {IN_W} {' '.join(DAY)}"
SHOP = f"--config shop.yaml {IN_W}"
STARS = f"--config stars.yaml {IN_W}"
LOG = f"--log log.csv {IN_W}"
EDGES = f"--edges edges.csv {IN_W}"
MATRIX = f"--model m --matrix matrix.csv {IN_W} --propensities"
ROUNDS = f"--model m --rounds rounds.csv {IN_W}"
LISTS = f"--model m --lists chosen.csv --truth truth.csv {IN_W}"
GOOD = (
    (nightly, NIGHT), (benchmark, STARS), (tune, STARS), (split, LOG), (split, SHOP), (evaluate, LISTS),
    (propensity, LOG), (embed, EDGES), (embed, f"{EDGES} --nodes @ids.txt"), (neighbourhoods, EDGES),
    (estimate, f"{MATRIX} chances.csv --log log.csv"), (estimate, f"{ROUNDS} --uniform 3"),
)  # fmt: skip


@pytest.mark.parametrize(("job", "line"), GOOD)
def test_the_right_flags_are_taken(job: ModuleType, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job, line, capsys) == (0, "")
    assert not Path("w").exists()


SETTINGS = (
    (benchmark, f"{STARS} --set evaluation.metrics=[rsme]", "unknown metric 'rsme'", "'rmse'"),
    (tune, f"{STARS} --set evaluation.metrics=[rsme]", "unknown metric 'rsme'", "'rmse'"),
    (split, f"{SHOP} --set evaluation.metrics=[ngcd]", "unknown metric 'ngcd'", "'ndcg'"),
    (nightly, f"{NIGHT} --set headline=ndcg@999", "nothing is measured at 999", "add 999"),
    (split, f"{SHOP} --set headline=ndcg@999", "nothing is measured at 999", "ndcg@10"),
    (nightly, f"{NIGHT} --set headline=auc@10", "auc has no cut-off", "write auc"),
    (nightly, f"{NIGHT} --set headline=hit", "hit needs a cut-off", "hit@10"),
    (benchmark, f"{STARS} --set headline=rmse@10", "rmse has no cut-off", "write rmse"),
    (nightly, f"{NIGHT} --set models.paper.figures.ngcd@10=0.3", "ngcd@10: no such metric", "'ndcg'"),
    (tune, f"{STARS} --set search.share=1e-12", "search.share", ""),
    (tune, f"{STARS} --set search.share=0.001", "of 21 rows none would be validated on", "0.05"),
    (tune, f"{STARS} --set search.budget=2147483647", "search.budget", ""),
    (tune, f"{STARS} --set search.seeds=2147483647", "search.seeds", ""),
    (tune, f"{STARS} --budget 2147483647", "--budget 2147483647: at most 100000", ""),
    (benchmark, f"{STARS} --set split.folds=2147483647", "2,147,483,647 fits", "--folds"),
    (nightly, f"{NIGHT} --set dataset.columns.time=watched_at", "unknown column 'time'", "'event_time'"),
    (split, f"{LOG} --columns user=user_id", "unknown column 'user'", "'user_id'"),
    (split, f"{LOG} --columns rating=rating,rating=watched_at", "rating is given twice", "one column"),
    (propensity, f"{LOG} --columns user_id=a,user_id=b", "user_id is given twice", "one column"),
    (nightly, f"{NIGHT} --set dataset.columns.rating=user_id --set dataset.columns.event_time=user_id",
     "'user_id' is two of", "a column of its own"),
    (split, f"--config movielens_1m {IN_W} --set dataset.path=. --set dataset.columns.user_id=u",
     "takes no 'columns'", "csv"),
    (nightly, f"{NIGHT} --set evaluation.slices=[{{\"key\":\"land\",\"of\":\"log\"}}]",
     "'land' is not in dataset.attributes", "dataset.attributes lists"),
    (nightly, f"{NIGHT} --set split.seed=010", "a number in base 8", "write 10, or quotes"),
    (nightly, f"{NIGHT} --set split.seed=1:10", "a number in base 60", "quotes"),
    (nightly, f"{NIGHT} --set comparisons.k=[7]", "comparisons.k: 7 not in evaluation.k", ""),
    (nightly, f"{NIGHT} --set dataset.world.users=5", "reads a log, and 'world'", "reader: world"),
    (split, f"{LOG} --reader parquet", "dataset.reader is parquet, and it is text", "reader: csv"),
    (propensity, f"--log edges.parquet {IN_W} --reader csv", "reader is csv, and it is", "reader: parquet"),
    (propensity, f"{LOG} --part trian", "--part trian: no part", "'train'"),
    (propensity, f"{LOG} --method naive_bayes --sample open", "--sample open: no part", "'open_loop'"),
    (benchmark, f"{STARS} --threads 100000", "at most 1024 threads", ""),
    (benchmark, f"{STARS} --log .", "--log . is a folder", "path of a file"),
    (tune, f"{STARS} --log log.csv/x", "lies in a file", "path of a file"),
    (nightly, f"{NIGHT} --log .", "--log . is a folder", "path of a file"),
    (split, f"{LOG} --journal .", "--journal . is a folder", "path of a file"),
    (embed, f"{EDGES} --journal .", "--journal . is a folder", "path of a file"),
    (evaluate, f"{LISTS} --quantiles 5", "--quantiles is not used with --lists", "predictions"),
    (evaluate, f"{LISTS} --similarity cosine", "--similarity is not used with --lists", "embeddings"),
    (embed, f"{EDGES} --columns src=a,src=b", "src is given twice", "one column"),
    (embed, f"{EDGES} --columns scr=src", "no column scr", "'src'"),
    (neighbourhoods, f"{EDGES} --columns src=a,src=b", "src is given twice", "one column"),
    (nightly, f"{NIGHT} --set dataset.options.seperator=|", "has no 'seperator'", "did you mean"),
    (nightly, f"{NIGHT} --set dataset.options.versionAsOf='3'", "'csv' has no 'versionAsOf'", "known:"),
    (split, f"--config movielens_1m {IN_W} --set dataset.path=. --set dataset.options.header='true'",
     "takes no 'columns' and no 'options'", "csv"),
    (nightly, f"{NIGHT} --set evaluation.parts=[valid]", "nor the log has rows of 'valid'",
     "split.ratio: [0.7, 0.1, 0.2]"),
    (nightly, f"{NIGHT} --set evaluation.parts=[test,open_loop]", "has rows of 'open_loop'", "known: test"),
    (nightly, f"--config demo {IN_W} {' '.join(DAY)} --set evaluation.parts=[quiz]",
     "neither the split nor the log has rows of 'quiz'", ""),
    (nightly, f"{NIGHT} --set comparisons.minimum_difference=50", "minimum_difference is 50", "0.01"),
    (nightly, f"{NIGHT} --set comparisons.metrics=[ndcg] --set comparisons.minimum_difference=1.5",
     "two values of ndcg are at most 1 apart", "0.01"),
    (nightly, f"{NIGHT} --set regressions=[{{\"metric\":\"ndcg\",\"k\":10,\"drop\":5}}]",
     "regressions.0.drop is 5", "0.01"),
    (nightly, f"{NIGHT} --set models=[{{\"name\":\"m\",\"kind\":\"gru4rec\"}}]",
     "reads histories in the order of time, and the log has no column 'event_time'", "watched_at"),
    (tune, f"{STARS} --set search.spaces.sgd.rates.high=1000000000.0", "rate of 1e+09 is above 1000", ""),
    (benchmark, f"{STARS} --set models.sgd.rates=1001", "learning rate of 1001 is above 1000", ""),
    (split, f"{LOG} --protocol TO_LS --set split.protocol=RO_LS", "are one setting", "leave one out"),
    (propensity, f"{LOG} --goodness 5 --method relative_frequency", "--goodness is not used", "steck"),
    (estimate, f"{ROUNDS} --uniform 2147483647", "--uniform 2147483647: at most", "number of items"),
    (embed, f"{EDGES} --sides u,i --node-table u=a --node-table u=b", "two tables of side u", "one table"),
)  # fmt: skip


@pytest.mark.parametrize(("job", "line", "report", "hint"), SETTINGS)
def test_settings_that_mean_nothing_are_refused(
    job: ModuleType, line: str, report: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(job, line, capsys)
    assert code == 2, said
    assert not Path("w").exists()
    assert report in said and hint in said


GIVEN = "--set evaluation.definition.candidates=given"
MISSING = (
    (nightly, f"{NIGHT} --set dataset.options.sep=;", "log.csv has no column user_id, item_id",
     "fields are separated by ','"),
    (nightly, f"{NIGHT} --set dataset.options.delimiter=\\t", "has no column user_id, item_id",
     "dataset.options sep"),
    (estimate, f"{MATRIX} chances.csv", "no column rating", ""),
    (benchmark, f"{STARS} --set dataset.path=lgo.csv", "lgo.csv", "'log.csv'"),
    (tune, f"{STARS} --set dataset.path=lgo.csv", "lgo.csv", "'log.csv'"),
    (multiverse, f"{NIGHT} --set dataset.path=lgo.csv", "lgo.csv", "'log.csv'"),
    (propensity, f"--log lgo.csv {IN_W}", "lgo.csv", "'log.csv'"),
    (propensity, f"{LOG} --method given --given chance.csv", "chance.csv", "'chances.csv'"),
    (propensity, f"{LOG} --method given --given log.csv", "no column propensity", ""),
    (propensity, f"{LOG} --method logistic_regression --item-features f.csv", "f.csv", ""),
    (estimate, f"{MATRIX} chance.csv --log log.csv", "chance.csv", "'chances.csv'"),
    (estimate, f"{MATRIX} chances.csv --log lgo.csv", "lgo.csv", "'log.csv'"),
    (estimate, f"{MATRIX} log.csv --log log.csv", "no column propensity", ""),
    (estimate, f"{ROUNDS} --policy polcy.csv", "polcy.csv", ""),
    (estimate, f"{ROUNDS} --policy-log polcy.csv", "polcy.csv", ""),
    (estimate, ROUNDS, "no column pi_e", ""),
    (embed, f"--edges edgs.csv {IN_W}", "edgs.csv", "'edges.csv'"),
    (embed, f"{EDGES} --node-table nodes.csv", "nodes.csv", ""),
    (embed, f"{EDGES} --columns src=source", "source", ""),
    (embed, f"{EDGES} --format parquet", "it is text, not a Parquet file", "--format"),
    (embed, f"--edges edges.parquet {IN_W} --format csv", "edges.parquet", ""),
    (embed, f"{EDGES} --nodes @idz.txt", "idz.txt", "'ids.txt'"),
    (neighbourhoods, f"--edges edgs.csv {IN_W}", "edgs.csv", "'edges.csv'"),
    (neighbourhoods, f"{EDGES} --format parquet", "it is text, not a Parquet file", "--format"),
    (nightly, f"{NIGHT} --set dataset.attributes=[country]", "country", ""),
    (nightly, f"{NIGHT} --set evaluation.candidates_path=edges.csv {GIVEN}",
     "no column user_id", ""),
    (bundle, "pack --config shop.yaml --warehouse w --predictions p.csv --name n --output o", "p.csv", ""),
    (bundle, "score --config shop.yaml --warehouse w --bundle b", "no such file or folder: b", ""),
)  # fmt: skip


@pytest.mark.parametrize(("job", "line", "report", "hint"), MISSING)
def test_tables_that_are_not_there_or_not_right_are_refused(
    job: ModuleType, line: str, report: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An input that is missing, or has another form, ends every dry run with 1: it may be right later."""
    code, said = run(job, line, capsys)
    assert code == 1, said
    assert report in said and hint in said
    assert not Path("w").exists()


ENTRY = "--warehouse wharehouse --entry e --why w"
READERS = (
    (maintain, "--warehouse wharehouse --optimize"), (maintain, "--warehouse wharehouse --migrate"),
    (maintain, "--warehouse wharehouse --keep-days 3 --logical-date 2026-01-01"),
    (maintain, "--warehouse wharehouse --vacuum-hours 48"),
    (query, "--warehouse wharehouse leaderboard"), (query, "--warehouse wharehouse --engine spark runs"),
    (report, "--config shop.yaml --warehouse wharehouse --logical-date 2026-01-01"),
    (board, "--config shop.yaml --warehouse wharehouse"),
    (bundle, f"accept {ENTRY}"), (bundle, f"retract {ENTRY}"),
    (bundle, "pack --config stars.yaml --warehouse wharehouse --model sgd --output o"),
    (propensity, "--split s --warehouse wharehouse"),
    (embed, "--split s --warehouse wharehouse --dry-run"),
    (embed, "--neighbourhoods n --warehouse wharehouse --dry-run"),
    (neighbourhoods, "--split s --warehouse wharehouse --dry-run"),
)  # fmt: skip


@pytest.mark.parametrize(("job", "line"), READERS)
def test_a_warehouse_that_is_not_there_is_not_made(
    job: ModuleType, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ArrowStore("warehouse").create(RUNS)
    code, said = run(job, line, capsys)
    assert code == 2, said
    assert "no results in warehouse wharehouse: there is no such folder" in said
    assert "did you mean 'warehouse'?" in said
    assert not Path("wharehouse").exists()


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (propensity, "--split nosplit --warehouse warehouse --dry-run"),
        (embed, "--split nosplit --warehouse warehouse --dry-run"),
        (neighbourhoods, "--split nosplit --warehouse warehouse --dry-run"),
        (embed, "--edges edges.csv --previous nomodel --warehouse warehouse --dry-run"),
    ],
)
def test_names_that_a_warehouse_does_not_hold_are_refused(
    job: ModuleType, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ArrowStore("warehouse")
    store.create(RUNS)
    store.create(SPLITS)
    code, said = run(job, line, capsys)
    assert code == 2 and re.search("--(split|previous) no(split|model): no such", said), said


PAPER = "models: [{name: paper, kind: published, figures: "


@pytest.mark.parametrize(
    ("text", "report", "hint"),
    [
        (f"{PAPER}{{ngcd@10: 0.3}}}}]", "ngcd@10: no such metric", "'ndcg'"),
        (f"{PAPER}{{rmse@10: 0.3}}}}]", "rmse has no cut-off", "write rmse"),
        ("a: &a {seed: 1}\nb: &b {fold: 0}\nsplit:\n  <<: *a\n  <<: *b", "key '<<' occurs twice", "line"),
        ("split: {seed: 017}", "YAML takes 017 for a number in base 8", "write 17, or quotes"),
        ("split: {seed: -010}", "YAML takes -010 for a number in base 8", "write -10, or quotes"),
        ("split: {seed: 1:10}", "YAML takes 1:10 for a number in base 60", "'1:10'"),
        ("description: 12:30:45", "YAML takes 12:30:45 for a number in base 60", "'12:30:45'"),
        ("evaluation: {slices: [{key: land, of: log}]}", "'land' is not in dataset.attributes", "lists"),
    ],
)  # fmt: skip
def test_files_are_told_by_line_and_key(
    text: str, report: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = text.partition(":")[0]
    kept = [line for line in RANKING.splitlines() if line.split(":")[0] != key]
    Path("shop.yaml").write_text("\n".join([*kept, text]) + "\n", encoding="utf-8")
    code, said = run(nightly, NIGHT, capsys)
    assert code == 2 and report in said and hint in said, said


TAKEN = (
    "--set dataset.options.sep=','", "--set dataset.options.HEADER='true'",
    "--set evaluation.parts=[test,valid] --set split.ratio=[0.7,0.1,0.2]",
    "--set evaluation.parts=[valid] --set split.holdout=leave_one_out --set split.valid=true",
    "--set evaluation.parts=[test,open_loop] --set dataset.columns.part=watched_at",
    "--set comparisons.minimum_difference=0.5",
    "--set comparisons.metrics=[hit] --set comparisons.minimum_difference=3",
)  # fmt: skip


@pytest.mark.parametrize("flags", TAKEN)
def test_what_can_be_meant_is_taken(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(nightly, f"{NIGHT} {flags}", capsys) == (0, "")


@pytest.mark.parametrize("value", ["7", "0", "007", "1_000", "'010'", "0x10", "-5", "1e3"])
def test_other_numbers_are_taken(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = RANKING.replace("headline", f'description: "{value} "\nsplit: {{seed: {value}}}\nheadline')
    Path("shop.yaml").write_text(text if value != "1e3" else RANKING, encoding="utf-8")
    assert run(nightly, NIGHT, capsys)[0] == 0


def test_a_headline_that_nobody_wrote_may_be_unmeasured(capsys: pytest.CaptureFixture[str]) -> None:
    Path("shop.yaml").write_text(RANKING.replace("headline: ndcg@10\n", ""), encoding="utf-8")
    assert run(nightly, f"{NIGHT} --set evaluation.k=[3]", capsys)[0] == 0
