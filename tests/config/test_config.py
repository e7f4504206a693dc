"""Benchmark files: strict, and an error says which file, which key, and what was meant."""

from __future__ import annotations

import json
import math
import random
import re
import string
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from recbench_spark.config import (
    BENCHMARKS,
    Benchmark,
    Dataset,
    Evaluation,
    Split,
    WorldSettings,
    digest,
    load_benchmark,
)
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.core.strict_settings import holds_secret
from recbench_spark.errors import ConfigError
from recbench_spark.models.rating.als import AlsModel
from recbench_spark.night.benchmark_checks import check_benchmark

MINIMAL: dict[str, Any] = {
    "name": "small",
    "dataset": {"name": "w", "reader": "world"},
    "models": [{"name": "pop", "kind": "popular"}, {"name": "als_8", "kind": "als", "rank": 8}],
}


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | dict[str, Any], name: str = "bench.yaml") -> str:
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
        return str(path)

    return write


def change_sections(**sections: Any) -> dict[str, Any]:
    return {**MINIMAL, **sections}


TOO_DEEP = "sections in one another|exceeded maximum nesting depth"
"""Ours, or that of PyYAML from 6.0.4 on, which looks first."""


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_benchmark_file_loads_and_bears_its_own_name(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    needs_path = document["dataset"]["reader"] != "world" and not document["dataset"].get("path")
    benchmark = load_benchmark(path.stem, ["dataset.path=somewhere"] if needs_path else [])
    assert benchmark.name == path.stem
    assert benchmark.description
    assert benchmark.evaluation.resolve()
    if needs_path:
        with pytest.raises(ConfigError, match="needs 'path'"):
            load_benchmark(path.stem)


def test_a_minimal_file_takes_the_defaults(write) -> None:
    benchmark = load_benchmark(write(MINIMAL))
    assert benchmark.split == Split()
    assert benchmark.evaluation == Evaluation()
    assert benchmark.models[1] == AlsModel(name="als_8", kind="als", rank=8)


def test_the_demo_by_name_and_by_path_are_the_same() -> None:
    assert load_benchmark("demo") == load_benchmark(str(BENCHMARKS / "demo.yaml"))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError) as error:
        load_benchmark("dmeo")
    assert "dmeo" in error.value.message
    assert "did you mean 'demo'?" in error.value.hint
    assert error.value.exit_code == 2


MISTAKES = [
    ({"modles": []}, "modles", "models"),
    ({"split": {"protocl": "RO_RS"}}, "split.protocl", "protocol"),
    ({"split": {"protocol": "RO_RZ"}}, "split.protocol", "RO_RS"),
    ({"dataset": {"name": "w", "reader": "wrold"}}, "dataset.reader", "world"),
    ({"dataset": {"name": "w", "reader": "world", "world": {"user": 3}}}, "dataset.world.user", "users"),
    ({"models": [{"name": "a", "kind": "asl"}]}, "models.0", "als"),
    ({"models": [{"name": "a", "kind": "als", "rnak": 3}]}, "models.0.als.rnak", "rank"),
    (
        {"models": [{"name": "a", "kind": "als", "provenance": {"yaer": 3}}]},
        "models.0.als.provenance.yaer",
        "year",
    ),
    ({"evaluation": {"slices": [{"key": "x", "off": "log"}]}}, "evaluation.slices.0", "of"),
    ({"evaluation": {"bootstrap": {"replicate": 3}}}, "evaluation.bootstrap.replicate", "replicates"),
]


@pytest.mark.parametrize(("sections", "key", "meant"), MISTAKES, ids=[m[1] for m in MISTAKES])
def test_a_mistake_names_file_key_and_nearest(write, sections, key: str, meant: str) -> None:
    file = write(change_sections(**sections))
    with pytest.raises(ConfigError) as error:
        load_benchmark(file)
    assert error.value.message.startswith(f"{file}: {key}")
    assert f"did you mean '{meant}'?" in error.value.hint or meant in error.value.message


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"evaluation": {"k": [0]}}, "evaluation.k"),
        ({"evaluation": {"k": [-1, 5]}}, "evaluation.k"),
        ({"evaluation": {"k": []}}, "evaluation.k"),
        ({"evaluation": {"k": ["ten"]}}, "evaluation.k"),
        ({"evaluation": {"bootstrap": {"level": 1.0}}}, "evaluation.bootstrap.level"),
        ({"split": {"ratio": [0.8, 0.1, 0.2]}}, "split.ratio"),
        ({"split": {"ratio": [0.0, 0.5, 0.5]}}, "split.ratio"),
        ({"split": {"ratio": [1.0, 0.0, 0.0]}}, "split.ratio"),
        ({"split": {"ratio": [1.2, -0.4, 0.2]}}, "split.ratio"),
        ({"dataset": {"name": "w", "reader": "world", "world": {"interactions": 999}}}, "dataset.world"),
        ({"dataset": {"name": "w", "reader": "csv"}}, "dataset"),
        ({"models": []}, "models"),
        ({"models": [{"name": "a", "kind": "popular"}, {"name": "a", "kind": "random"}]}, "models"),
        ({"models": [{"name": "a", "kind": "als", "rank": 0}]}, "models.0.als.rank"),
        ({"models": [{"name": "a", "kind": "als", "rank": "eight"}]}, "models.0.als.rank"),
        ({"name": "a b"}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "x'; DROP TABLE runs; --"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "x\n"}, "name"),
        ({"models": [{"name": "a/b", "kind": "popular"}]}, "models.0.popular.name"),
        ({"evaluation": {"parts": ["te st"]}}, "evaluation.parts.0"),
    ],
)
def test_values_out_of_range_are_refused(write, sections, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_benchmark(write(change_sections(**sections)))
    assert f": {key}" in error.value.message


@pytest.mark.parametrize(
    "text", ["", "- a\n- b\n", "just words", "a: [1\n", "a: !!python/object:os.system x\n"]
)
def test_what_is_no_benchmark_file_is_a_config_error(write, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_benchmark(write(text))
    assert "bench.yaml" in error.value.message


def test_set_replaces_by_path_by_position_and_by_name(write) -> None:
    benchmark = load_benchmark(
        write(MINIMAL),
        ["split.seed=7", "models.als_8.rank=4", "models.0.name=most_popular", "evaluation.k=[1, 10, 1]",
         "dataset.world.users=50", "evaluation.definition.threshold=4", "ran_by=a team"],
    )  # fmt: skip
    assert benchmark.split.seed == 7
    assert [model.name for model in benchmark.models] == ["most_popular", "als_8"]
    assert benchmark.models[1].rank == 4
    assert benchmark.evaluation.k == (1, 10)
    assert benchmark.dataset.world == WorldSettings(users=50)
    assert benchmark.evaluation.resolve().threshold == 4
    assert benchmark.ran_by == "a team"


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("split.seed", "KEY=VALUE"),
        ("=3", "KEY=VALUE"),
        ("split.sed=3", "did you mean 'seed'"),
        ("models.als_9.rank=3", "did you mean 'als_8'"),
        ("models.7.rank=3", "no entry '7'"),
        ("name.x=3", "not a section"),
        ("evaluation.k=0", "evaluation.k"),
        ("split.seed=seven", "split.seed"),
    ],
)
def test_a_wrong_override_says_so(write, override: str, word: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_benchmark(write(MINIMAL), [override])
    assert word in str(error.value)


def test_an_override_that_is_no_yaml_is_a_config_error(write) -> None:
    with pytest.raises(ConfigError):
        load_benchmark(write(MINIMAL), ["split.seed=[1"])


def test_a_wrong_axis_or_preset_is_named(write) -> None:
    wrong_axis = load_benchmark(write(MINIMAL), ["evaluation.definition.gian=linear"])
    with pytest.raises(ConfigError, match=r"definition\.gian") as error:
        wrong_axis.evaluation.resolve()
    assert "did you mean 'gain'?" in error.value.hint
    with pytest.raises(ConfigError, match="unknown preset 'recbol'"):
        load_benchmark(write(MINIMAL), ["evaluation.preset=recbol"]).evaluation.resolve()


def test_the_whole_curve_is_every_cut_off_to_the_largest() -> None:
    assert Evaluation(k=(2, 5)).cutoffs == (2, 5)
    assert Evaluation(k=(2, 5), curve=True).cutoffs == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("needing", [{"multiverse": True}, {"exposure": {}}])
def test_what_needs_all_ranks_says_so(needing) -> None:
    with pytest.raises(ValidationError, match=f"{next(iter(needing))} needs all ranks"):
        Evaluation(uncut=False, **needing)


def test_settings_cannot_be_changed_afterwards() -> None:
    split = Split()
    with pytest.raises(ValidationError, match="frozen"):
        split.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (Split(), "RO_RS 0.8/0/0.2 seed 42"),
        (Split(protocol="TO_RS", ratio=(0.8, 0.1, 0.1), seed=1), "TO_RS 0.8/0.1/0.1 seed 1"),
        (Split(protocol="TO_LS"), "TO_LS test only seed 42"),
        (Split(protocol="RO_LS", valid=True), "RO_LS with valid seed 42"),
        (Split(protocol="given"), "given seed 42"),
    ],
)
def test_a_split_in_words(split: Split, words: str) -> None:
    assert split.describe() == words


def test_a_digest_knows_values_and_not_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest("ab", "c") != digest("a", "bc")
    assert len(digest(1)) == 16


def test_a_column_map_and_a_world_are_part_of_a_dataset() -> None:
    dataset = Dataset(name="log", reader="csv", path="x.csv", columns={"user_id": "who"})
    assert dataset.columns == {"user_id": "who"}
    assert (
        Benchmark(name="b", dataset=dataset, models=[{"name": "p", "kind": "popular"}]).headline
        == "ndcg@10"
    )


def test_a_log_may_be_read_without_a_column_of_our_name() -> None:
    facts = {"name": "log", "reader": "csv", "path": "x.csv"}
    dataset = Dataset(**facts, columns={"rating": "", "event_time": ""})
    assert dataset.source_names == {"user_id": "user_id", "item_id": "item_id", "part": "part"}
    with pytest.raises(ValueError, match="a log needs the column user_id"):
        Dataset(**facts, columns={"user_id": ""})


NOT_FINITE = [
    ("gates=[{fact: rows, below: .nan}]", "gates.0.below"),
    ("gates=[{fact: rows, above: .inf}]", "gates.0.above"),
    ("regressions=[{metric: ndcg, k: 5, drop: .inf}]", "regressions.0.drop"),
    ("comparisons.minimum_difference=.nan", "comparisons.minimum_difference"),
    ("evaluation.exposure.clip=.inf", "evaluation.exposure.clip"),
    ("evaluation.bootstrap.level=.nan", "evaluation.bootstrap.level"),
    ("models.als_8.alpha=1.0e+999", "models.1.als.alpha"),
    ("models.als_8.provenance.search_space={rank: [.nan]}", "models.1.als.provenance.search_space.rank"),
    ("models=[{name: p, kind: published, figures: {ndcg: -.inf}}]", "models.0.published.figures"),
    ("split.ratio=[.nan, 0, 0.2]", "split.ratio"),
]


@pytest.mark.parametrize(("override", "key"), NOT_FINITE, ids=[key for _, key in NOT_FINITE])
def test_no_number_is_infinite_or_nan(write, override: str, key: str) -> None:
    with pytest.raises(ConfigError, match=r"finite|sum to 1|greater|less") as error:
        load_benchmark(write(MINIMAL), [override])
    assert key in error.value.message


@pytest.mark.parametrize("threshold", [".nan", ".inf", "-.inf"])
def test_no_axis_is_infinite_or_nan(write, threshold: str) -> None:
    loaded = load_benchmark(write(MINIMAL), [f"evaluation.definition.threshold={threshold}"])
    with pytest.raises(ConfigError, match=r"definition\.threshold"):
        loaded.evaluation.resolve()


WITHOUT_A_TRACE = [
    ("models.²=1", "no entry '²'"),
    ("models." + "9" * 5000 + ".rank=1", "no entry"),
    ("a=2026-99-99", "not valid YAML"),
    ("split.seed=!!int foo", "not valid YAML"),
    ("split.seed=!!bool foo", "not valid YAML"),
    ("split.seed=!!timestamp foo", "not valid YAML"),
    ("split.seed=" + "[" * 100_000, TOO_DEEP),
    ("split.seed=" + "9" * 5000, "split.seed"),
    ("split.seed=9223372036854775808", "split.seed"),
    ("evaluation.k.0.x=1", "not a section"),
    ("evaluation.k.0.x.y=1", "not a section"),
    ("name.x=1", "not a section"),
    ("split.protocol=[given]", "split.protocol"),
    ("split.protocol={a: 1}", "split.protocol"),
    ("split.start=2026", "write a day"),
    ("split.start=0001-01-01T00:00:00+14:00", "split.start"),
    ("split={holdout: period, length: 999999999999w}", "out of the calendar"),
    ("split={holdout: period, length: 99999999999999999999d}", "split.length"),
    ("comparisons.baseline_night=20260131", "write a day"),
    ("evaluation.k=[2147483648]", "cut-offs"),
    ("evaluation={curve: true, k: [2147483647]}", "at most 10000"),
    ("evaluation.metrics=[ndcg, recall, ndcg]", "'ndcg' is given twice"),
    ("evaluation.metrics=[]", "at least one"),
    ("evaluation.parts=[test, test]", "'test' is given twice"),
    ("evaluation.draw.estimators=[rank_estimate, rank_estimate]", "twice"),
    ("evaluation.features=' '", "evaluation.features"),
    ("dataset.world.users=true", "not true"),
    ("evaluation.k=[yes, 10]", "k: a number or text is expected, and not true"),
    ("split.ratio=[.8, no, .2]", "ratio: a number or text is expected, and not false"),
    ("evaluation.metrics=!!set {ndcg, hit}", "not a set"),
    ("evaluation.definition.threshold=yes", "definition.threshold: a number or text"),
    ("models=[{name: p, kind: published, figures: {ndcg: yes}}]", "figures.ndcg: a number or text"),
    ("models.als_8.provenance.search_space={rank: [yes]}", "search_space.rank: a number or text"),
    ("headline=ndcg@0", "headline"),
    ("x" * 5000 + "=1", "letters"),
    ("dataset.name=a: b: c", "not valid YAML"),
    ('description="\\ud800"', "not valid YAML"),
    ("evaluation.slices=[{key: a, of: popularity, key: b}]", "'key' occurs twice"),
]


@pytest.mark.parametrize(
    ("override", "word"), WITHOUT_A_TRACE, ids=[text[:40] for text, _ in WITHOUT_A_TRACE]
)
def test_an_odd_override_ends_in_a_sentence(write, override: str, word: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_benchmark(write(MINIMAL), ["evaluation.k=[1]", override])
    assert re.search(word, str(error.value)) and len(str(error.value)) < 2000


def test_a_key_that_is_misspelt_is_reported_before_the_one_that_is_missing(write) -> None:
    misspelt = {"datasett" if key == "dataset" else key: value for key, value in MINIMAL.items()}
    with pytest.raises(ConfigError, match="datasett: Extra inputs") as error:
        load_benchmark(write(misspelt))
    assert "did you mean 'dataset'" in error.value.hint


def test_a_name_too_long_for_a_disk_is_no_file() -> None:
    with pytest.raises(ConfigError, match="no benchmark file") as error:
        load_benchmark("a" * 5000)
    assert len(error.value.message) < 400


@pytest.mark.parametrize("until", ["9999-12-31", "2026-99-99", "20260131x"])
def test_a_log_that_ends_with_the_calendar_is_reported(write, until: str) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.until"):
        fill_placeholders(load_benchmark(write(MINIMAL), [f"dataset.until='{until}'"]), date(2026, 1, 1))


@pytest.mark.parametrize(
    "override",
    [
        "dataset.path=s3a://key:hush@bucket/log",
        "dataset.path=s3a://AKIA:hu/sh@bucket/log",
        "dataset.path=https://host/log?sv=2&sig=hush",
        "dataset.path=jdbc:postgresql://host/db;password=hush",
        "models=[{name: l, kind: lists, path: 'abfss://u:hush@c.dfs.core.windows.net/l'}]",
        "evaluation.features=https://hush@host/f",
        "dataset.options={fs.s3a.secret.key: hush}",
        "dataset.options={fs.azure.account.key.acc.dfs.core.windows.net: hush}",
        "dataset.options={password: hush}",
        "dataset.options={sasToken: hush}",
        "dataset.options={url: 'jdbc:mysql://u:hush@host/db'}",
        "ran_by=https://me:hush@host",
        "dataset.attributes=['https://hush@host/f']",
        "dataset.columns={user_id: 's3a://key:hush@bucket'}",
    ],
)
def test_a_secret_is_refused_and_not_repeated(write, override: str) -> None:
    with pytest.raises(ConfigError, match=r"secret|password") as error:
        load_benchmark(write(MINIMAL), [override])
    assert "hush" not in str(error.value) and "spark.hadoop" in str(error.value)


B64 = "Qx7/m" + "aZ3k9" * 7
KEYS = (
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ASIA" + "Y34FZKBOKMUTVV7A",
    "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY",
    "AIza" + "SyA-1_b" * 5,
    "ya29." + "a0AfH6SM" * 4,
    "-----BEGIN " + "PRIVATE KEY-----",
    "GOCSPX-" + "aB3_" * 7,
    (B64 * 3)[:86] + "==",
    "abc8Q~" + "xY_z." * 6 + "abcd",
    "dapi" + "0f" * 16,
    "hf_" + "aB" * 17,
    "ghp_" + "aB3" * 12,
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0" + ".c2lnbmF0dXJl",
)
"""Shapes of keys: made up here, or examples of their makers' documentation."""


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "place",
    ["dataset.path", "ran_by", "dataset.options.x", "dataset.attributes", "dataset.columns.user_id"],
)
@pytest.mark.parametrize("text", ["{}", "s3a://{}@bucket/log", "key={} "])
def test_a_bare_key_of_a_cloud_is_refused_and_not_repeated(write, place: str, key: str, text: str) -> None:
    value: Any = [text.format(key)] if place == "dataset.attributes" else text.format(key)
    with pytest.raises(ConfigError, match=r"secret|password") as error:
        load_benchmark(write(MINIMAL), [f"{place}={json.dumps(value)}"])
    assert key not in str(error.value) and "spark.hadoop" in str(error.value)


PATHS_OF_FORTY = (
    "/mnt/DataLake/MovieLens25M/Ratings/Y2026",
    "warehouse/Recommender/2026/Q1/Clicks/RAW",
    "GraphSageWithNegativesFromWalksSeed20260",
    "LightGCN3Layers64DimensionsAdamLR0001BPR",
    "hdfs/Teams/RecSys/Exports/2026/01/31/CSV",
)


@pytest.mark.parametrize("seed", range(5))
def test_secrets_of_forty_letters_are_distinguished_from_hashes_names_and_paths(seed: int) -> None:
    draw = random.Random(seed)
    letters = string.ascii_letters + string.digits + "/+"
    secrets = ["".join(draw.choices(letters, k=40)) for _ in range(500)]
    assert sum(map(holds_secret, secrets)) > 425
    assert not any(holds_secret("".join(draw.choices("0123456789abcdef", k=n))) for n in (32, 40, 64))
    for text in PATHS_OF_FORTY:
        assert len(text) == 40 and not holds_secret(text), text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{metrics: [map]}", r"paradoxes\.metrics: map not in evaluation"),
        ("{metrics: ['']}", r"paradoxes\.metrics: '' not in evaluation"),
        ("{by: [land]}", r"paradoxes\.by: land not in evaluation"),
        ("{parts: [valid]}", r"paradoxes\.parts: valid not in evaluation"),
        ("{k: [7]}", r"paradoxes\.k: 7 not in evaluation"),
    ],
)
def test_paradoxes_of_what_is_not_measured_are_refused(write, settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_benchmark(write(MINIMAL), ["evaluation.metrics=[ndcg]", f"paradoxes={settings}"])


def test_options_of_readers_and_plain_uris_are_no_secrets() -> None:
    options = {
        "sep": "|",
        "header": "true",
        "nullValue": "-",
        "pathGlobFilter": "*.csv",
        "quote": "",
    }
    for path in (
        "hdfs://host:8020/a@b",
        "abfss://box@acc.dfs.core.windows.net/log",
        "s3a://bucket/dt=2026",
    ):
        assert Dataset(name="log", reader="csv", path=path, options=options).path == path


ANCHORS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (ANCHORS, "aliases add more than"),
        ("a: &a {b: *a}", "contains itself"),
        ("name: a\nname: b", "'name' occurs twice"),
        ("[" * 50_000, TOO_DEEP),
        ("name: !!python/object/apply:os.system [x]", "not valid YAML"),
        ("- a", "expected keys and values"),
    ],
)
def test_a_file_that_is_a_trap_is_refused_at_once(write, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_benchmark(write(text))


def test_a_repeated_key_is_named_with_both_lines(write) -> None:
    with pytest.raises(ConfigError, match="key 'seed' occurs twice") as error:
        load_benchmark(write("name: a\nsplit:\n  seed: 1\n  group: user\n  seed: 2\n"))
    assert error.value.hint == "line 3 and line 5: keep one of them"


def test_a_repeated_name_of_a_model_is_named_with_both_places(write) -> None:
    models = [
        {"name": name, "kind": kind} for name, kind in (("a", "popular"), ("b", "random"), ("a", "als"))
    ]
    with pytest.raises(ConfigError) as error:
        load_benchmark(write(yaml.safe_dump(MINIMAL | {"models": models})))
    assert "'a' is the name of models.0 (kind popular) and of models.2 (kind als)" in error.value.message


def test_an_anchor_used_twice_is_taken(write) -> None:
    text = (
        yaml.safe_dump(MINIMAL) + "evaluation: {metrics: &m [ndcg], k: [5]}\ncomparisons: {metrics: *m}\n"
    )
    assert load_benchmark(write(text)).comparisons is not None


def test_what_nothing_is_held_out_to_or_measured_is_said_before_spark(write) -> None:
    for override, word in (
        ("evaluation.parts=[tset]", "'tset'"),
        ("headline=ngcd@5", "no such metric"),
    ):
        with pytest.raises(ConfigError, match=word):
            check_benchmark(load_benchmark(write(MINIMAL), [override]))


def test_settings_made_before_keep_their_hashes() -> None:
    """Split and evaluation of the demo as code of 7c5124e hashed them: old runs are found again."""
    demo = load_benchmark("demo")
    assert digest(demo.split.model_dump()) == "ded48bfe4d16db7e"
    assert digest(demo.evaluation.model_dump()) == "f6382d29f3e58680"
    assert digest(demo.models[0].model_dump()) == "de62e41fd8892c30"


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("ndcg@10", 17.0), ("ndcg", float("nan")), ("recall@5", -0.1), ("hit@10", 10.5), ("rmse", -1.0),
        ("rmse", float("inf")), ("rig", 1.2), ("pe", -1.5), ("anything", float("nan")), ("gini", 1.01),
    ],
)  # fmt: skip
def test_published_figures_that_no_definition_gives_are_refused(write, figure: str, value: float) -> None:
    paper = {"name": "paper", "kind": "published", "figures": {"mrr": 0.2, figure: value}}
    message = "lies outside" if math.isfinite(value) else "should be a finite number"
    with pytest.raises(ConfigError, match=rf"figures.*{figure}: .*{message}"):
        load_benchmark(write({**MINIMAL, "models": [paper]}))


def test_possible_figures_are_kept(write) -> None:
    figures = {
        "ndcg@10": 1.0,
        "hit@10": 3.2,
        "rmse": 0.77,
        "rig": -3.0,
        "novelty@5": 11.0,
        "anything": -4.0,
    }
    paper = {"name": "paper", "kind": "published", "figures": figures}
    assert load_benchmark(write({**MINIMAL, "models": [paper]})).models[0].figures == figures


def test_only_given_lists_and_scores_have_hashed_ties(write) -> None:
    evaluation = {"evaluation": {"preset": "warprec"}}
    given = [{"name": kind, "kind": kind, "path": f"{kind}.parquet"} for kind in ("lists", "scores")]
    check_benchmark(load_benchmark(write({**MINIMAL, **evaluation, "models": given})))
    with pytest.raises(ConfigError, match=r"model popular: definition\.ties is 'hashed'"):
        models = [*given, {"name": "popular", "kind": "popular"}]
        check_benchmark(load_benchmark(write({**MINIMAL, **evaluation, "models": models})))
