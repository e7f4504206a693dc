"""Facts by hand from small frames, then what the renderers make of them. No JVM."""

import math
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recbench_spark.analyses.comparisons.kernels.agreement import swap_orders
from recbench_spark.core.definitions import Definition, axis_values
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.reports import (
    COMPARED_COLUMNS,
    Report,
    add_tests,
    describe_code_changes,
    describe_flips,
    leaderboard_text,
    make_changes,
    make_flips,
    make_report,
    render_html,
    write_page,
    write_report,
)
from recbench_spark.reports.facts import ChangeFacts, MetricEstimate, ReportedMeasure
from recbench_spark.reports.leaderboards import list_columns
from recbench_spark.reports.phrases import ANY, AXES_IN_WORDS, definition_in_words, format_estimate
from recbench_spark.reports.scales import Axis, axis_for, spread_labels
from recbench_spark.reports.text import BAR_WIDTH, interval_bar

LATEST = {
    "suite": "demo", "logical_date": "2026-01-05", "dataset": "world", "split": "RO_RS 0.8/0/0.2",
    "split_id": "split1", "model_kind": "als", "source": "baseline", "part": "test", "metric": "ndcg",
    "definition": "v1", "k": 10, "estimator": "holdout", "slice_key": None, "slice_value": None,
    "ci_low": None, "ci_high": None, "n": 4,
}  # fmt: skip
RUN = {
    "suite": "demo", "logical_date": "2026-01-05", "model_kind": "als", "model_version": "1",
    "config_json": '{"evaluation": {"bootstrap": {"level": 0.9}}}', "code_version": "0.1.0",
    "source": "baseline", "ran_by": "us", "status": "succeeded", "seconds": 1.5, "n_users": 4,
}  # fmt: skip
CHECKS = ["run_id", "check", "severity", "observed", "threshold", "passed", "detail"]
MANIFESTS = ["split_id", "part", "fact", "value", "detail"]


def number(model: str, value: float | None, **more: Any) -> dict[str, Any]:
    return {**LATEST, "model": model, "run_id": f"run-{model}", "value": value, **more}


def report(
    *numbers: dict[str, Any],
    headline: str = "ndcg@10",
    runs: list[dict[str, Any]] | None = None,
    checks: list[list[Any]] | None = None,
    manifests: list[list[Any]] | None = None,
) -> Report:
    models = {row["run_id"]: row["model"] for row in numbers}
    known = runs or [{**RUN, "run_id": run_id, "model": model} for run_id, model in models.items()]
    return make_report(
        pd.DataFrame(list(numbers), columns=[*LATEST, "model", "run_id", "value"]),
        pd.DataFrame(known, columns=["run_id", "model", *RUN, "error", "at_grid_edge", "started_at"]),
        pd.DataFrame(checks or [], columns=CHECKS),
        pd.DataFrame(manifests or [], columns=MANIFESTS),
        headline,
        sql_lines=["make sql"],
    )


def demo() -> Report:
    """Two parts that disagree on a and b, three cut-offs, slices, a check, a manifest."""
    values = {("a", "test"): 0.6, ("b", "test"): 0.4, ("a", "open_loop"): 0.2, ("b", "open_loop"): 0.3}
    rows = []
    for (model, part), value in values.items():
        for k, factor in ((1, 0.5), (5, 0.75), (10, 1.0), (None, 1.25)):
            v = value * factor
            rows.append(number(model, v, part=part, k=k, ci_low=v - 0.02, ci_high=v + 0.02))
        rows.append(number(model, value / 2, part=part, metric="recall"))
        rows.append(number(model, 0.5, part=part, metric="auc", k=None))
        rows += [
            number(model, value / 4, part=part, slice_key="popularity", slice_value=name)
            for name in ("tail", "head")
        ]
    return report(
        *rows,
        checks=[["run-a", "tied_scores", "warning", 0.5, 0.1, False, "half of the scores are tied"]],
        manifests=[
            ["split1", "train", "rows", 8.0, None],
            ["split1", "test", "rows", 2.0, None],
            ["split1", "log", "overlap", 0.0, "pairs in more than one row"],
            ["split1", "train", "content_hash", None, "-12345"],
            ["other", "train", "rows", 9.0, None],
        ],
    )


# ------------------------------------------------------------------------------- facts


def test_positions_count_the_better_models_and_ties_share_one() -> None:
    (board,) = report(
        number("a", 1 / 4), number("b", 3 / 4), number("c", 1 / 4), number("d", 0)
    ).leaderboards
    assert [(row.position, row.model) for row in board.rows] == [(1, "b"), (2, "a"), (2, "c"), (4, "d")]


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [("ndcg", (0.2, 0.3), "y"), ("rmse", (0.2, 0.3), "x"), ("pe", (-0.3, 0.2), "y"), ("mae", (2, 1), "y")],
)
def test_each_metric_has_its_direction(metric: str, values: tuple[float, float], best: str) -> None:
    rows = [number(model, v, metric=metric, k=None) for model, v in zip("xy", values, strict=True)]
    assert report(*rows, headline=metric).leaderboards[0].rows[0].model == best


def test_a_value_that_is_missing_stands_last_and_is_a_dash() -> None:
    facts = report(number("a", None), number("b", -1.0))
    assert [row.model for row in facts.leaderboards[0].rows] == ["b", "a"]
    assert format_estimate(facts.leaderboards[0].rows[1].estimate) == "–"
    assert "nan" not in render_html(facts).lower()
    assert "nan" not in leaderboard_text(facts).lower()


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ((0.1, 0.3), (0.2, 0.4), True),
        ((0.1, 0.2), (0.2, 0.3), True),
        ((0.1, 0.2), (0.21, 0.3), False),
        ((0.1, 0.9), (0.4, 0.5), True),
        ((None, None), (0.4, 0.5), None),
        ((0.1, None), (0.4, 0.5), None),
    ],
)
def test_intervals_overlap_where_they_share_a_point(
    one: tuple[float, float], other: tuple[float, float], overlap: bool | None
) -> None:
    a, b = MetricEstimate(0.2, *one, 1), MetricEstimate(0.4, *other, 1)
    assert a.overlaps(b) is overlap
    assert b.overlaps(a) is overlap


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4))
def test_overlap_is_what_enumeration_says(ends: list[int]) -> None:
    (a, b), (c, d) = sorted(ends[:2]), sorted(ends[2:])
    shared = set(range(a, b + 1)) & set(range(c, d + 1))
    assert MetricEstimate(a, a, b, 1).overlaps(MetricEstimate(c, c, d, 1)) is bool(shared)


def test_rows_say_whether_the_next_interval_overlaps() -> None:
    (board,) = report(
        number("a", 0.5, ci_low=0.4, ci_high=0.6),
        number("b", 0.4, ci_low=0.3, ci_high=0.5),
        number("c", 0.1, ci_low=0.05, ci_high=0.15),
        number("d", 0.05),
    ).leaderboards
    assert [row.overlaps_next for row in board.rows] == [True, False, None, None]


@pytest.mark.parametrize(
    "difference",
    [{"definition": "v1;gain=linear"}, {"part": "valid"}, {"estimator": "drawn"}, {"split_id": "split2"}],
)
def test_numbers_that_mean_different_things_get_boards_of_their_own(difference: dict[str, Any]) -> None:
    facts = report(number("a", 0.5), number("b", 0.9, **difference))
    assert [[row.model for row in board.rows] for board in facts.leaderboards].count(["a"]) == 1
    assert len(facts.leaderboards) == 2


def test_families_beyond_accuracy_have_a_table_each_and_widen_no_board() -> None:
    names = ("recall", "novelty", "coverage", "aplt", "gini", "diversity")
    rows = [number(model, n / 10, metric=name) for model in "ab" for n, name in enumerate(names)]
    facts = report(number("a", 0.5), number("b", 0.9), *rows)
    (board,) = facts.leaderboards
    tables = {
        family: [board.others[n].metric for n in places] for family, places in list_columns(board).items()
    }
    assert tables == {
        "": ["recall", "coverage"],
        "coverage": ["gini"],
        "popularity": ["novelty", "aplt"],
        "diversity": ["diversity"],
    }
    assert "recall@10  coverage@10  users" in leaderboard_text(facts)
    page = render_html(facts)
    main = page.partition('id="leaderboard"')[2].partition("</section>")[0]
    beyond = page.partition('id="families"')[2].partition("</section>")[0]
    assert "recall" in main and "novelty" not in main
    assert beyond.count("<table>") == 3 and beyond.count("<td") == 2 * 4 and "0.1000" in beyond
    assert 'id="families"' not in render_html(report(number("a", 0.5), number("a", 0.1, metric="recall")))
    curves = [number("a", k / 10, metric=name, k=k) for name in ("ndcg", "novelty") for k in (1, 5, 10)]
    assert [curve.measure.metric for curve in report(*curves).curves] == ["ndcg"]


def test_splits_of_earlier_nights_are_passed_over() -> None:
    facts = report(number("a", 0.5), number("b", 0.9, split_id="old", logical_date="2026-01-04"))
    assert facts.models == ("a",)


def test_other_columns_take_the_same_cutoff_and_the_nearest_definition() -> None:
    (board,) = report(
        number("a", 0.5),
        number("a", 0.1, metric="recall", k=5),
        number("a", 0.2, metric="recall"),
        number("a", 0.3, metric="recall", definition="v1;recall_by=min_k_relevant"),
        number("a", 0.4, metric="auc", k=None),
        number("b", 0.1),
    ).leaderboards
    assert [(m.label, m.definition) for m in board.others] == [("recall@10", "v1"), ("auc", "v1")]
    assert [[e and e.value for e in row.others] for row in board.rows] == [[0.2, 0.4], [None, None]]


def test_a_headline_that_was_not_measured_is_replaced_and_said_so() -> None:
    facts = report(number("a", 0.5, k=3), number("a", 0.4, k=5), headline="ndcg@10")
    assert facts.leaderboards[0].measure.label == "ndcg@5"
    assert facts.summary[0] == "ndcg@10 was not measured; models are ranked by ndcg@5 instead."
    assert report(number("a", 0.5, metric="auc", k=None)).leaderboards[0].measure.label == "auc"


def test_the_parts_disagree_on_the_pairs_in_opposite_order() -> None:
    # test: a > b > c; open loop: b > a > c, so one pair of three, and its intervals are apart.
    places = {"test": (0.9, 0.5, 0.1), "open_loop": (0.3, 0.6, 0.1)}
    facts = report(
        *(
            number(model, v, part=part, ci_low=v - 0.01, ci_high=v + 0.01)
            for part, values in places.items()
            for model, v in zip("abc", values, strict=True)
        )
    )
    (agreement,) = facts.agreements
    assert (agreement.pairs, agreement.reversed_pairs, agreement.clear) == (3, 1, 1)
    assert "1 of 3 pairs" in facts.summary[-1]


def test_the_sentence_names_the_leader_and_how_far_ahead_it_is() -> None:
    apart = report(number("a", 0.75, ci_low=0.7, ci_high=0.8), number("b", 0.5, ci_low=0.45, ci_high=0.55))
    assert apart.summary == (
        "a leads with ndcg@10 0.7500 [0.7000, 0.8000], 0.2500 (50.0 %) better than b; "
        "their intervals do not overlap.",
    )
    close = report(number("a", 0.75, ci_low=0.4, ci_high=0.8), number("b", 0.5, ci_low=0.3, ci_high=0.7))
    assert "their intervals overlap" in close.summary[0]
    assert "level with b" in report(number("a", 0.5), number("b", 0.5)).summary[0]


def test_the_first_sentence_is_about_a_model_that_could_be_deployed() -> None:
    facts = report(number("t", 0.9, model_kind="truth"), number("a", 0.5), number("b", 0.4))
    assert facts.summary[0].startswith(
        "a is the best model that could be deployed, with ndcg@10 0.5000, 0.1"
    )
    assert facts.summary[0].endswith("t (the world's own scores, no model) is above a with ndcg@10 0.9000.")
    assert facts.leaderboards[0].reference.model == "a"
    beaten = report(number("t", 0.3, model_kind="truth"), number("a", 0.5), number("p", 0.5, source="x"))
    assert beaten.summary[0].startswith("a leads with ndcg@10 0.5000, level with p.")
    assert beaten.summary[0].endswith("no model) is below a with ndcg@10 0.3000.")


def test_regressions_come_first_whatever_else_there_is_to_say() -> None:
    fell = tuple(f"m{n}: ndcg@10 of test is 0.1, 0.3 before" for n in range(7))
    rows = [number("a", 0.5), number("b", 0.4)]
    columns = ([*LATEST, "model", "run_id", "value"], [*RUN, "run_id", "model"], CHECKS, MANIFESTS)
    frames = [pd.DataFrame(rows if n == 0 else [], columns=names) for n, names in enumerate(columns)]
    facts = make_report(*frames, "map@3", sql_lines=[], regressions=fell)
    assert facts.summary[0] == "Regression: m0: ndcg@10 of test is 0.1, 0.3 before."
    assert facts.summary[5] == "2 more regressions stand in the view regressions."
    assert facts.summary[6].startswith("map@3 was not measured")
    page = render_html(facts)
    assert page.index("Regression: m0") < page.index("Regression: m4") < page.index("a leads")
    assert '<dt>Regressions</dt><dd><span class="bad">7</span>' in page
    assert "Regression: m0" in leaderboard_text(facts)
    one = make_report(*frames, "ndcg@10", sql_lines=[], regressions=fell[:6])
    assert one.summary[5] == "1 more regression stands in the view regressions."
    nothing = make_report(
        *(frame.iloc[:0] for frame in frames), "ndcg@10", sql_lines=[], regressions=fell[:1]
    )
    assert nothing.summary == (
        "Regression: m0: ndcg@10 of test is 0.1, 0.3 before.",
        "No succeeded run to show.",
    )


MODELS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.sampled_from([None, -0.5, 0.0, 0.2, 0.2000001, 0.5]),
            "model_kind": st.sampled_from(["als", "popular", "truth", "published"]),
            "half": st.sampled_from([None, 0.01, 0.4]),
        }
    ),
    min_size=1,
    max_size=4,
)
METRICS_TOLD = st.sampled_from(["ndcg", "rmse", "pe", "rig"])


@given(MODELS, st.none() | MODELS, METRICS_TOLD)
def test_what_a_report_says_is_true_whatever_the_numbers(
    tested: list[dict[str, Any]], opened: list[dict[str, Any]] | None, metric: str
) -> None:
    rows = [
        number(
            f"m{n}", m["value"], part=part, metric=metric, model_kind=m["model_kind"],
            ci_low=None if m["value"] is None or m["half"] is None else m["value"] - m["half"],
            ci_high=None if m["value"] is None or m["half"] is None else m["value"] + m["half"],
        )
        for part, models in (("test", tested), ("open_loop", opened or []))
        for n, m in enumerate(models)
    ]  # fmt: skip
    facts = report(*rows, headline=f"{metric}@10")
    text = " ".join(facts.summary)
    assert not re.search(
        r"\b1 (pairs|regressions) |\b1 of \d+ pairs? of models are|nan|ceiling|better by -", text
    )
    for board, sentence in zip(facts.leaderboards, facts.summary, strict=False):
        _check_sentence(board, sentence)
    render_html(facts)


def _check_sentence(board: Any, sentence: str) -> None:
    """Against the rows, by their own numbers."""
    bad = {row.model: board.measure.sort_key(row.estimate.value) for row in board.rows}
    known = [row for row in board.rows if math.isfinite(bad[row.model])]
    if not known:
        assert "undefined" in sentence
        return
    ours = [row.model for row in known if row.model_kind not in ("truth", "published")]
    leader = re.sub(r"^On \w+, ", "", sentence).split()[0]
    assert bad[leader] == min(bad[model] for model in ours or [row.model for row in known])
    assert ("leads" in sentence) == (bad[leader] == min(bad.values()))
    for size, other in re.findall(r"([\d.]+\d|0\.0001)(?: \([\d.]+ %\))? better than (m\d)", sentence):
        gap = bad[other] - bad[leader]
        assert gap > 0 and (abs(float(size) - gap) < 1e-4 or gap < 1e-4)
    for other in re.findall(r"level with (m\d)[;.]", sentence):
        assert bad[other] == bad[leader]
    for model, place in re.findall(
        r"(m\d) \((?:the world's own scores, no model|published)\) is (above|below|level)", sentence
    ):
        gap = bad[model] - bad[leader]
        assert place == ("above" if gap < 0 else "below" if gap > 0 else "level")
    if "no other model" in sentence:
        assert len(known) == 1 and ("there is no other" in sentence) == (len(board.rows) == 1)


def test_weighted_ndcg_carries_a_note() -> None:
    rows = [number("a", 0.5), number("a", 0.4, estimator="ips", definition="v1;propensities=x")]
    (facts,) = report(*rows).corrections
    assert facts.note is not None and "farther from the truth than the holdout" in facts.note
    assert "ips_pooled, not requested here" in facts.note
    assert facts.note in leaderboard_text(report(*rows)) and facts.note in render_html(report(*rows))
    more = [*rows, number("a", 0.45, estimator="ips_pooled", definition="v1;propensities=x")]
    (offered,) = report(*more).corrections
    assert offered.note is not None and "not requested" not in offered.note
    recall = [{**row, "metric": "recall"} for row in rows]
    assert report(*recall, headline="recall@10").corrections[0].note is None


def test_curves_leave_out_the_uncut_value_and_sort_cutoffs() -> None:
    curve = demo().curves[0]
    assert (curve.part, curve.measure.metric, curve.ks) == ("test", "ndcg", (1, 5, 10))
    assert [e.value for e in curve.lines[0].estimates] == pytest.approx([0.3, 0.45, 0.6])
    assert report(number("a", 0.5)).curves == ()


def test_slices_come_in_the_order_head_to_tail() -> None:
    facts = demo().slices[0]
    assert (facts.key, facts.values, facts.left_out) == ("popularity", ("head", "tail"), 0)
    assert [e and e.value for e in facts.rows[0][1]] == pytest.approx([0.15, 0.15])


def test_of_many_slices_the_largest_are_kept() -> None:
    rows = [number("a", 0.5, slice_key="genre", slice_value=f"g{i:02}", n=100 - i) for i in range(20)]
    (facts,) = report(number("a", 0.5), *rows).slices
    assert facts.values == tuple(f"g{i:02}" for i in range(12))
    assert facts.left_out == 8


def test_equal_findings_are_one_row_and_failed_ones_come_first() -> None:
    facts = report(
        number("a", 0.5),
        number("b", 0.4),
        checks=[
            ["run-a", "left_out", "info", 2.0, None, True, "two users"],
            ["run-b", "left_out", "info", 2.0, None, True, "two users"],
            ["run-b", "ties", "warning", 0.5, 0.1, False, "ties"],
            ["run-b", "overlap", "error", 1.0, 0.0, False, "leak"],
            ["run-z", "elsewhere", "error", 1.0, 0.0, False, "another night"],
        ],
    )
    assert [(row.check, row.models) for row in facts.checks] == [
        ("overlap", ("b",)),
        ("ties", ("b",)),
        ("left_out", ("a", "b")),
    ]
    assert [row.check for row in facts.failures] == ["overlap"]
    assert [row.check for row in facts.warnings] == ["ties"]


def test_the_manifest_is_a_matrix_of_its_own_split() -> None:
    (manifest,) = demo().manifests
    assert (manifest.parts, manifest.facts) == (("log", "train", "test"), ("rows", "overlap"))
    assert manifest.values == ((None, 8.0, 2.0), (0.0, None, None))
    assert manifest.notes == ("", "pairs in more than one row")
    assert manifest.texts == (("train", "content_hash", "-12345"),)


def test_runs_list_their_settings_and_the_nights_failures() -> None:
    own = {**RUN, "run_id": "run-a", "model": "a", "at_grid_edge": ["rank"]}
    failed = {**RUN, "run_id": "x", "model": "broken", "status": "failed", "error": "out of memory"}
    earlier = {**failed, "run_id": "y", "logical_date": "2026-01-04"}
    facts = report(number("a", 0.5), runs=[own, failed, earlier])
    assert [(run.model, run.status) for run in facts.runs] == [("broken", "failed"), ("a", "succeeded")]
    assert facts.runs[1].at_grid_edge == ("rank",)
    assert facts.level == 0.9
    assert "out of memory" in render_html(facts)


def test_figures_of_a_model_whose_last_attempt_failed_are_reported_as_what_they_are() -> None:
    own = {**RUN, "run_id": "run-a", "model": "a", "started_at": "2026-01-05 10:00:00"}
    failed = {**own, "run_id": "x", "status": "failed", "error": "features hold NaN"}
    before = report(number("a", 0.5), runs=[own, {**failed, "started_at": "2026-01-05 09:00:00"}])
    after = report(number("a", 0.5), runs=[own, {**failed, "started_at": "2026-01-05 11:00:00"}])
    assert [run.status for run in before.runs] == ["succeeded"]
    assert [run.status for run in after.runs] == ["failed", "succeeded"]
    sentence = "a's last attempt failed: its figures are of an earlier one."
    assert sentence not in before.summary and after.summary[0] == sentence
    assert sentence in leaderboard_text(after) and "features hold NaN" in render_html(after)


def test_two_datasets_of_a_night_are_boards_of_their_own_and_named() -> None:
    other = {"dataset": "shop", "split_id": "split2", "run_id": "run-shop"}
    rows = [number("a", 0.5), number("b", 0.6), number("a", 0.9, **other)]
    facts = report(*rows)
    boards = [(b.dataset, [row.model for row in b.rows]) for b in facts.leaderboards]
    assert boards == [("shop", ["a"]), ("world", ["b", "a"])]
    text = leaderboard_text(facts)
    assert "shop, split split2" in text and "world, split split1" in text
    assert "split split1" not in leaderboard_text(report(*rows[:2]))


def test_a_model_that_failed_on_other_data_has_no_older_figures_here() -> None:
    own = {**RUN, "run_id": "run-a", "model": "a", "started_at": "2026-01-05 10:00:00", "dataset": "world"}
    failed = {**own, "run_id": "x", "status": "failed", "started_at": "2026-01-05 11:00:00"}
    assert "last attempt failed" in " ".join(make_run_report(own, failed).summary)
    assert "last attempt failed" not in " ".join(
        make_run_report(own, {**failed, "dataset": "shop"}).summary
    )


def make_run_report(*runs: dict[str, Any]) -> Report:
    latest = pd.DataFrame([number("a", 0.5)], columns=[*LATEST, "model", "run_id", "value"])
    empty = pd.DataFrame([], columns=CHECKS), pd.DataFrame([], columns=MANIFESTS)
    return make_report(latest, pd.DataFrame(list(runs)), *empty, "ndcg@10", sql_lines=["make sql"])


def test_frames_as_spark_and_deltalake_hand_them_over_are_understood() -> None:
    frame = pd.DataFrame([number("a", 0.5), number("a", 0.25, k=None), number("a", 0.5, k=5)])
    frame["k"] = frame["k"].astype("float64")
    frame["logical_date"] = pd.to_datetime(frame["logical_date"]).dt.date
    empty = pd.DataFrame(columns=["run_id", "suite", "logical_date", "model", "status"])
    facts = make_report(
        frame, empty, pd.DataFrame(columns=CHECKS), pd.DataFrame(columns=MANIFESTS), "ndcg@10", sql_lines=[]
    )
    assert facts.leaderboards[0].measure == ReportedMeasure("ndcg", 10, "v1", "holdout")
    assert facts.logical_date == "2026-01-05"


def test_a_missing_column_and_two_suites_are_errors() -> None:
    frame = pd.DataFrame([number("a", 0.5)])
    with pytest.raises(SchemaError, match="latest_metrics has no column ci_low"):
        make_report(frame.drop(columns="ci_low"), frame, frame, frame, "ndcg@10", sql_lines=[])
    with pytest.raises(DataError, match="one suite, not demo, nightly"):
        report(number("a", 0.5), number("b", 0.5, suite="nightly"))


# ------------------------------------------------------------------------------- words


def test_every_axis_and_value_of_a_definition_has_words() -> None:
    """A new axis or value is explained in reports/phrases.py."""
    assert set(AXES_IN_WORDS) == {*Definition.model_fields, "curve"}  # that of learning curves is no field
    for axis in Definition.model_fields:
        words = AXES_IN_WORDS[axis][1]
        default = str(Definition.model_fields[axis].default)
        assert set(words) - {default, "None"} == set(axis_values(axis) or (ANY,)) - {default}


def test_a_definition_in_words() -> None:
    assert definition_in_words("v1") == ()
    text = Definition(gain="linear", threshold=4.0).describe()
    assert definition_in_words(text) == (
        ("Gain of an item", "its relevance r"),
        ("Relevant", "relevance of at least 4.0"),
    )
    assert definition_in_words("v9;unheard=of") == (("unheard", "of"),)


# ------------------------------------------------------------------------------- terminal


def test_the_terminal_table() -> None:
    text = leaderboard_text(
        report(
            number("als_32", 0.3121, ci_low=0.3050, ci_high=0.3190, n=1234),
            number("popular", 0.3, ci_low=0.29, ci_high=0.31),
            number("als_32", 0.25, metric="recall"),
        )
    )
    answer, _, title, header, rule, first, second = text.splitlines()[1:8]
    assert answer.startswith(
        "Best on test that can be shipped: als_32, ndcg@10 0.3121 [0.3050, 0.3190]; its "
    )
    assert title == "test: ndcg@10, definition v1, 90 % bootstrap intervals"
    assert header.split()[:3] == ["#", "model", "ndcg@10"] and header.endswith("recall@10  users")
    assert set(rule) == {"─"}
    assert first.startswith("~  1  als_32   0.3121 [0.3050, 0.3190]")
    assert first.endswith("0.2500  1,234")
    assert second.startswith("   2  popular  0.3000 [0.2900, 0.3100]") and second.endswith("–      4")
    assert first.index("●") > second.index("●")
    assert "the order of the two may be chance" in text


def test_the_bar_shows_interval_and_value() -> None:
    axis = Axis(0, BAR_WIDTH - 1, 0, BAR_WIDTH - 1)
    assert interval_bar(MetricEstimate(4, 2, 6, 1), axis) == "  ├─●─┤".ljust(BAR_WIDTH)
    assert interval_bar(MetricEstimate(3, None, None, 1), axis) == "   ●".ljust(BAR_WIDTH)
    assert interval_bar(MetricEstimate(math.nan, None, None, 1), axis).strip() == ""


def test_failures_are_on_the_terminal_and_control_characters_are_not() -> None:
    facts = report(
        number("a\x1b[31m", 0.5),
        checks=[["run-a\x1b[31m", "overlap", "error", 1.0, 0.0, False, "a leak"]],
    )
    text = leaderboard_text(facts)
    assert "error: overlap: 1, allowed 0; a leak" in text
    assert "\x1b" not in text


# ------------------------------------------------------------------------------- pictures


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.integers(2, 8))
def test_ticks_are_round_inside_the_scale_and_few(low: float, length: float, about: int) -> None:
    axis = Axis(low, low + length, 0, 100)
    ticks = axis.ticks(about)
    slack = 1e-6 * (abs(low) + length)
    assert len(ticks) <= about + 1
    assert all(low - slack <= tick <= low + length + slack for tick in ticks)


@given(st.lists(st.floats(0, 100), max_size=8))
def test_labels_keep_their_distance_their_order_and_the_frame(wishes: list[float]) -> None:
    placed = spread_labels(wishes, gap=10, top=0, bottom=100)
    ordered = [y for _, y in sorted(zip(wishes, placed, strict=True))]
    assert all(b - a >= 10 - 1e-6 for a, b in pairwise(ordered))
    assert all(-1e-6 <= y <= 100 + 1e-6 for y in placed)


def test_a_scale_holds_every_interval_and_survives_one_point() -> None:
    axis = axis_for([MetricEstimate(0.5, 0.4, 0.9, 1), None, MetricEstimate(0.8, None, None, 1)], 0, 100)
    assert axis(0.4) > 0 and axis(0.9) < 100
    assert axis_for([MetricEstimate(0.5, 0.5, 0.5, 1)], 0, 100)(0.5) > 0
    assert axis_for([], 0, 100).ticks()


def test_the_page_is_self_contained() -> None:
    page = render_html(demo())
    assert not re.search(r"https?:|//\w|\bsrc=|<script|<link|<img|<iframe|@import|url\(", page)
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', page))
    assert "default-src 'none'" in page


def test_the_page_shows_every_section_and_each_link_leads_somewhere() -> None:
    page = render_html(demo())
    sections = set(re.findall(r'<section id="([^"]+)"', page))
    assert sections == {
        *("leaderboard", "open-loop", "cutoffs", "slices", "checks", "split", "definitions"),
        *("runs", "sql", "glossary"),
    }
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert {target for target in targets if not target.startswith("term-")} == sections
    assert targets <= set(re.findall(r'id="([^"]+)"', page))
    assert "prefers-color-scheme: dark" in page


def test_pictures_and_tables_say_what_they_are() -> None:
    page = render_html(demo())
    pictures = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert pictures
    assert all("<title>" in picture or 'aria-hidden="true"' in picture for picture in pictures)
    assert len(re.findall("<table>", page)) == len(re.findall("<caption", page))
    assert page.count("<section") == page.count("</section>")
    assert len(re.findall("<tr[ >]", page)) == page.count("</tr>")


def test_names_are_escaped() -> None:
    rows = [number("<script>alert(1)</script>", 0.5, k=k) for k in (5, 10)]
    checks = [["run-<script>alert(1)</script>", "c", "info", 1.0, None, True, "<b>bold</b>"]]
    page = render_html(report(*rows, checks=checks))
    assert "<script" not in page and "<b>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_equal_tables_give_equal_bytes_whatever_the_order_of_rows() -> None:
    rows = [number(m, v, k=k) for m, v in (("a", 0.5), ("b", 0.5), ("c", 0.1)) for k in (1, 5, 10)]
    checks = [[f"run-{m}", "c", "info", 1.0, None, True, "text"] for m in "abc"]
    first = render_html(report(*rows, checks=checks))
    assert first == render_html(report(*rows[::-1], checks=checks[::-1]))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [number("only", 0.5)],
        [number("only", None)],
        [number("only", 0.5, k=None, metric="auc")],
        [number("a", 0.5, ci_low=0.4, ci_high=0.6), number("b", 0.5)],
        [number("a", 0.0), number("b", 0.0)],
        [number("a", 0.5, slice_key="popularity", slice_value="head")],
    ],
    ids=["none", "one", "no value", "no cut-off", "one interval", "all zero", "slices only"],
)
def test_small_and_odd_inputs_have_a_report(rows: list[dict[str, Any]]) -> None:
    facts = report(*rows)
    assert facts.summary
    assert leaderboard_text(facts)
    assert render_html(facts).rstrip().endswith("</html>")


def test_many_models_have_a_report() -> None:
    rows = [number(f"m{i:02}", i / 40, k=k) for i in range(40) for k in (5, 10)]
    page = render_html(report(*rows))
    assert all(f"m{i:02}" in page for i in range(40))


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "report.html"
    assert write_report(report(number("a", 0.5)), target) == target
    write_report(demo(), str(target))
    assert target.read_text(encoding="utf-8") == render_html(demo())
    assert list(target.parent.iterdir()) == [target]


# ------------------------------------------------------------------------------- changes


def change(group: str, mix: float, within: float, **more: Any) -> dict[str, Any]:
    return {
        "part": "test", "model": "a", "metric": "ndcg", "k": 10, "definition": "v1", "value": 0.75,
        "other_value": 0.5, "other_date": "2026-01-04", "group_key": "users", "group_value": group,
        "share_before": 0.5, "share_after": 0.25, "mean_before": 0.5, "mean_after": None,
        "mix_change": mix, "within_change": within, **more,
    }  # fmt: skip


def test_changes_of_the_models_that_moved_most_and_the_groups_that_add_most() -> None:
    small = [change("x", 0.0, 0.01 * n, model=f"m{n}", value=0.5 + 0.01 * n) for n in range(5)]
    many = [change(f"g{n}", 0.02 * n, -0.01, group_key="n_relevant") for n in range(10)]
    facts = make_changes(pd.DataFrame([*small, change("left", 0.125, 0.125), *many]))
    assert [(f.model, f.key) for f in facts] == [
        ("a", "users"), ("a", "n_relevant"), ("m4", "users"), ("m3", "users"), ("m2", "users")
    ]  # fmt: skip
    users, relevant = facts[:2]
    assert (users.measure, users.before, users.after, users.reach) == ("ndcg@10", 0.5, 0.75, 0.125)
    assert users.groups[0].mean == (0.5, None)
    assert [g.group for g in relevant.groups] == [*(f"g{n}" for n in range(9, 1, -1)), "2 others"]
    assert relevant.mix == pytest.approx(0.9) and relevant.within == pytest.approx(-0.1)
    assert relevant.groups[-1].share == (1.0, 0.5)


def test_changes_are_drawn_as_bars_from_zero() -> None:
    facts = make_changes(pd.DataFrame([change("left", -0.25, 0.125), change("still", 0.0, 0.0)]))
    page = render_html(replace(report(number("a", 0.75)), changes=facts))
    bars = re.findall(r'<rect class="(mix|within)" x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)"', page)
    # Zero lies at 310, a quarter is 160 to either side.
    assert bars == [("mix", "150.0", "160.0"), ("within", "310.0", "80.0")]
    assert "still" not in page and "-0.0000" not in page
    assert "0.5000 (2026-01-04) to 0.7500: +0.2500" in page and 'href="#changes"' in page
    assert "the code changed" not in page
    assert make_changes(pd.DataFrame([change("still", 0.0, 0.0, value=0.50004)])) == ()
    assert make_changes(pd.DataFrame([], columns=list(change("x", 0, 0)))) == ()


@pytest.mark.parametrize(
    ("alone", "word"),
    [(True, "nothing else differs"), (False, "log or settings differ"), (None, "cannot be known")],
)
def test_a_number_that_the_code_moved_is_said_to_be(alone: bool | None, word: str) -> None:
    moved = {"code_change": "recbench-spark 1 -> 2: splits 1 -> 2", "code_alone": alone}
    rows = [change("left", -0.25, 0.125, **moved), change("1", 0.5, 0.25, group_key="n_relevant", **moved)]
    same = change("x", 0.0, 0.25, model="b", code_change=None, code_alone=None)
    facts = make_changes(pd.DataFrame([*rows, same]))
    said = find_code_changes([*rows, same], facts)
    assert len(said) == 1 and said[0].startswith("a: ") and word in said[0]
    assert "2026-01-04 (recbench-spark 1 -&gt; 2: splits 1 -&gt; 2)" in said[0]


def test_changed_code_is_said_where_no_number_moved() -> None:
    still = change("x", 0.0, 0.0, value=0.5, code_change="recbench-spark 1 -> 2: ", code_alone=True)
    assert len(find_code_changes([still], ())) == 1
    assert find_code_changes([change("x", 0.0, 0.0, value=0.5)], ()) == []


def find_code_changes(rows: list[dict[str, Any]], facts: tuple[ChangeFacts, ...]) -> list[str]:
    lines = describe_code_changes(pd.DataFrame(rows))
    page = render_html(replace(report(number("a", 0.75)), changes=facts, code_changes=lines))
    assert ('href="#changes"' in page) == bool(facts or lines)
    return re.findall('<p class="warn">(.*the code changed.*)</p>', page)


# ------------------------------------------------------------------------------- flips


def flip(model: str, other: str, removed: int | None, **changes: object) -> dict[str, object]:
    row = {"run_id": model, "other_run_id": other, "part": "test", "metric": "ndcg", "k": 10}
    row |= {
        "definition": "v1",
        "removed_are": "items",
        "found_at": pd.Timestamp("2026-01-05"),
        "model": model,
    }
    ids = [] if removed is None else [f"i{n}" for n in range(removed)]
    return row | {"other": other, "removed": removed, "out_of": 200, "ids": ids} | changes


def test_the_verdicts_that_the_fewest_items_turn_come_first() -> None:
    old = flip("a", "b", 1, found_at=pd.Timestamp("2026-01-04"))
    facts = make_flips(pd.DataFrame([old, flip("a", "c", 7), flip("a", "d", None), flip("a", "b", 2)]))
    assert [(one.other, one.removed, one.largest) for one in facts] == [
        ("b", 2, ("i0", "i1")),
        ("c", 7, ("i0", "i1", "i2", "i3", "i4")),
    ]
    page = render_html(replace(report(number("a", 0.75)), flips=facts))
    assert "2 of 200 items" in page and "1 %" in page and "i3, i4, …" in page and 'href="#flips"' in page
    (line,) = describe_flips(facts, {"a": "als"})
    (named,) = describe_flips(facts, {"b": "truth"})
    assert "items b (the world's own scores, no model) leads a on test" in named
    assert "without 2 of 200 items b leads a on test (ndcg@10), and without 7 of" in line
    assert make_flips(pd.DataFrame([], columns=list(old))) == () == describe_flips((), {})
    assert 'id="flips"' not in render_html(report(number("a", 0.75)))


# ------------------------------------------------------------------------------- exposure


def test_estimates_under_exposure_bias_stand_beside_the_open_loop() -> None:
    """The holdout has a before b, the open loop and ips b before a: tau-b -1 and 1."""
    rows = []
    for model, held, weighed, truth in (("a", 0.5, 0.2, 0.1), ("b", 0.4, 0.3, 0.2)):
        exposed = {"definition": "v1;propensities=true", "estimator": "ips"}
        strata = {"definition": "v1;propensities=true;strata=2 equal_mass", "estimator": "stratified"}
        rows += [
            number(model, held),
            number(model, truth, part="open_loop"),
            number(model, weighed, ci_low=weighed - 0.1, ci_high=weighed + 0.1, **exposed),
            number(model, held / 2, **strata),
            number(model, None, estimator="dr", definition="v1;propensities=true;rewards=None"),
            number(model, held, metric="dcg"),
        ]
    made = report(*rows)
    assert {board.others for board in made.leaderboards} == {()}
    assert {board.measure.estimator for board in made.leaderboards} == {"holdout"}
    (facts,) = made.corrections
    assert (facts.part, facts.models, facts.reference) == ("test", ("a", "b"), "open_loop")
    columns = [(c.name, c.places, c.agreement) for c in facts.columns]
    assert columns == [
        ("holdout", (1, 2), -1.0), ("ips", (2, 1), 1.0),
        ("stratified 2 equal mass", (1, 2), -1.0), ("open_loop", (2, 1), None),
    ]  # fmt: skip
    page, text = render_html(made), leaderboard_text(made)
    assert 'id="exposure"' in page and "stratified 2 equal mass" in page and "-1.00" in page
    assert re.search(r"tau-b +-1\.00 +1\.00 +-1\.00", text)
    assert 'id="exposure"' not in render_html(demo())


def test_estimators_that_say_the_same_share_a_column() -> None:
    """ips and clipped ips are equal for both models; snips user differs in an interval, so it stays."""
    exposed = {"definition": "v1;propensities=true"}
    rows = [number("a", 0.5), number("b", 0.4)]
    for estimator, high in (("ips", 0.4), ("clipped_ips", 0.4), ("snips_user", 0.45)):
        for model, value in (("a", 0.2), ("b", 0.1)):
            rows.append(number(model, value, estimator=estimator, ci_low=0.05, ci_high=high, **exposed))
    made = report(*rows)
    (facts,) = made.corrections
    assert [c.name for c in facts.columns] == ["holdout", "ips = clipped ips", "snips user"]
    assert [[e.value for e in c.estimates if e] for c in facts.columns] == [
        [0.5, 0.4],
        [0.2, 0.1],
        [0.2, 0.1],
    ]
    assert re.search(r"model +holdout +ips = clipped ips +snips user", leaderboard_text(made))
    assert "ips =<br>clipped ips<br>" in render_html(made)
    # The open loop is what the others are compared with: it never shares a column.
    open_loop = [number("a", 0.2, part="open_loop"), number("b", 0.1, part="open_loop")]
    weighed = [number("a", 0.2, estimator="ips", **exposed), number("b", 0.1, estimator="ips", **exposed)]
    for some in ((*rows[:2], *open_loop, *weighed), (rows[0], open_loop[0], weighed[0])):
        (facts,) = report(*some).corrections
        assert [c.name for c in facts.columns] == ["holdout", "ips", "open_loop"]


def test_agreement_better_than_the_holdout_s_is_tested() -> None:
    """Five models: ips has one pair the other way round than the open loop (tau .8), the holdout two."""
    values = {"open_loop": (1, 2, 3, 4, 5), "ips": (1, 2, 3, 5, 4), "holdout": (2, 1, 4, 3, 5)}
    exposed = {"definition": "v1;propensities=true", "estimator": "ips"}
    rows = []
    columns = (values[name] for name in ("holdout", "ips", "open_loop"))
    for model, held, weighed, truth in zip("abcde", *columns, strict=True):
        rows += [number(model, held / 10), number(model, truth / 10, part="open_loop"),
                 number(model, weighed / 10, **exposed)]  # fmt: skip
    (facts,) = report(*rows).corrections
    wanted = swap_orders(*(np.array(values[name], float) for name in ("ips", "holdout", "open_loop")))
    p_values = {c.name: c.p for c in facts.columns}
    assert p_values == {"holdout": None, "open_loop": None, "ips": pytest.approx(wanted)}
    assert 0 < wanted < 0.5 and f"p {wanted:.2f}" in render_html(report(*rows))


def test_a_model_without_an_estimate_has_a_gap_and_no_open_loop_no_agreement() -> None:
    (facts,) = report(
        number("a", 0.5),
        number("b", 0.4),
        number("b", 0.1, estimator="ips", definition="v1;propensities=p"),
    ).corrections
    assert facts.reference is None and [c.agreement for c in facts.columns] == [None, None]
    assert facts.columns[1].places == (None, 1)


def test_lists_with_training_items_are_reported_beside_their_row() -> None:
    rows = [number("night", 0.6), number("handed", 0.7, model_kind="lists")]
    check = ["run-handed", "list rows of training items", "warning", 72545.0, 0.0, False, "lists count"]
    made = report(*rows, checks=[check])
    page, text = render_html(made), leaderboard_text(made)
    sentence = "handed: 72,545 rows of its lists are training items, which are taken out of those of other"
    assert [row.training_rows for row in made.leaderboards[0].rows] == [72545, 0]
    assert f"* {sentence}" in text and "handed *" in text and "night *" not in text
    assert "set training_items: drop in its entry under models" in text
    assert sentence in page
    alone = report(rows[1], checks=[check])
    assert "handed *" not in leaderboard_text(alone)  # nobody else's training items are taken out


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o027, 0o640), (0o022, 0o644)])
def test_who_may_read_a_page_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        path = write_page("<p>", tmp_path / "reports" / "page.html")
        write_page("<p>again", path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode and path.read_text() == "<p>again"
    assert [one.name for one in path.parent.iterdir()] == ["page.html"]


def test_a_paired_test_decides_before_overlapping_intervals() -> None:
    """a and b: intervals overlap, p .001; b and c: p .4; c and d: no p, since the test has no freedom."""
    facts = report(
        *(
            number(m, v, ci_low=v - 0.2, ci_high=v + 0.2)
            for m, v in zip("abcd", (0.5, 0.4, 0.3, 0.2), strict=True)
        )
    )
    adjusted = {("a", "b"): 0.001, ("b", "c"): 0.4, ("c", "d"): None}
    blank = dict.fromkeys(COMPARED_COLUMNS)
    cell = {"kind": "pair", "part": "test", "metric": "ndcg", "k": 10, "definition": "v1"}
    rows = [
        {**blank, **cell, "model": model, "other": other, "p_holm": p}
        for (model, other), p in adjusted.items()
    ]
    tested = add_tests(facts, pd.DataFrame(rows, columns=list(COMPARED_COLUMNS)))
    (board,) = tested.leaderboards
    assert [row.overlaps_next for row in board.rows] == [False, True, True, None]
    assert tested.summary[0].endswith(
        "better than b; a test user by user tells them apart (p by Holm 0.001)."
    )
    assert "intervals overlap" in facts.summary[0]
