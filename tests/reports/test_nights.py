"""The first screen, earlier nights and advice of a report, from small frames. No JVM."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from recbench_spark.commands.nightly import list_conclusions, print_board
from recbench_spark.metrics.kernels.about import ABOUT
from recbench_spark.query.command_lines import command_anywhere, query_command
from recbench_spark.reports import (
    COMPARED_COLUMNS,
    HISTORY_COLUMNS,
    Fall,
    Report,
    add_nights,
    add_tests,
    advice,
    leaderboard_text,
    list_causes,
    make_fall,
    make_pairs_compared,
    render_html,
)
from recbench_spark.reports.advice import choose_advice, group_findings, split_notes
from recbench_spark.reports.facts import CheckRow
from recbench_spark.reports.glossary import METRICS, TERMS, explain_users, list_terms
from recbench_spark.reports.opening import describe_fall, make_opening, share_in_words
from recbench_spark.reports.phrases import format_signed
from tests.reports.test_reports import RUN, number, report

COMPARED = {
    "kind": "previous", "logical_date": "2026-02-03", "other_date": "2026-02-02", "model": "ours",
    "other": "ours", "part": "test", "metric": "ndcg", "definition": "v1", "k": 10, "users": 3000,
    "value": 0.033, "other_value": 0.098, "difference": -0.065, "ci_low": -0.07, "ci_high": -0.06,
    "p_holm": 0.00001, "verdict": "worse", "allowed_drop": 0.01, "regressed": True, "e_fall": None,
    "with_baseline": False, "run_id": "run-ours", "other_run_id": "run-before",
}  # fmt: skip


def fall(causes: tuple[str, ...] = (), is_shipped: bool = True, **more: Any) -> Fall:
    return make_fall({**COMPARED, **more}, causes, is_shipped)


def history(values: dict[str, list[tuple[str, float]]], **more: Any) -> pd.DataFrame:
    rows = [
        {**number(model, value, **more), "logical_date": day}
        for model, nights in values.items()
        for day, value in nights
    ]
    return pd.DataFrame(rows, columns=list(HISTORY_COLUMNS))


def make_fallen_night() -> Report:
    made = report(
        *(number(m, v, model_kind=m) for m, v in (("truth", 0.5), ("ours", 0.2), ("popular", 0.1))),
    )
    made = replace(made, falls=(fall(("its lists changed on 2026-02-03",)),), has_rules=True)
    nights = history({"ours": [("2026-01-04", 0.3), ("2026-01-05", 0.2)]})
    return add_nights(made, nights, make_pairs_compared(pd.DataFrame([COMPARED])))


# ------------------------------------------------------------------------------- the first screen


def test_a_regression_is_a_sentence_that_a_manager_reads() -> None:
    causes = list_causes(["lists"], [], None, "2026-02-03", "2026-02-02")
    assert describe_fall(fall(causes)) == (
        "ours fell by two thirds: ndcg@10 from 0.0980 to 0.0330 (on test, 3,000 users), against its night "
        "before, 2026-02-02; its lists changed on 2026-02-03."
    )


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.5, "half"),
        (0.34, "a third"),
        (0.43, "43 %"),
        (0.25, "a quarter"),
        (0.004, "0.4 %"),
        (1.4, "140 %"),
    ],
)
def test_a_share_has_its_name_or_its_per_cent(share: float, words: str) -> None:
    assert share_in_words(share) == words


def test_a_metric_whose_small_values_are_best_rises_and_one_around_zero_moves() -> None:
    worse = fall(metric="rmse", k=None, value=1.5, other_value=1.0, difference=0.5)
    assert describe_fall(worse).startswith("ours rose by half: rmse from 1.0000 to 1.5000")
    around = fall(metric="pe", k=None, value=0.3, other_value=-0.1, difference=0.4)
    assert describe_fall(around).startswith("ours moved by +0.4000: pe from -0.1000 to 0.3000")


def test_causes_name_what_differs_and_when() -> None:
    made = list_causes(["log"], ["rank from 8 to 2"], "metrics 1 -> 2", "2026-02-03", "2026-01-28")
    between = "between 2026-01-28 and 2026-02-03"
    assert made == (
        f"the log changed {between}", f"its setting rank from 8 to 2 {between}",
        f"the code changed {between} (metrics 1 -> 2)",
    )  # fmt: skip


def test_the_first_screen_says_what_fell_and_what_can_be_shipped() -> None:
    opening = make_opening(make_fallen_night())
    assert opening.tone == "bad" and opening.verdict.startswith("Do not ship ours: worse than an earlier")
    assert opening.events[0].startswith("ours fell by two thirds")
    assert opening.shipped == (
        "Best on test that can be shipped: popular, ndcg@10 0.1000; above it: truth (the world's own "
        "scores, no model), ours (it regressed).",
    )


@pytest.mark.parametrize(
    ("more", "tone", "words"),
    [
        ({}, "good", "there is no earlier night"),
        ({"falls": (fall(is_shipped=False),)}, "warn", "a model that nobody ships did"),
        ({"checks": (CheckRow("rows", "error", False, 1.0, 0.0, "none", ("a",)),)}, "bad", "failed gates"),
    ],
)
def test_the_verdict_is_the_first_that_holds(more: dict[str, Any], tone: str, words: str) -> None:
    opening = make_opening(replace(report(number("a", 0.5)), **more))
    assert opening.tone == tone and words in opening.verdict


def test_a_model_that_failed_or_was_stopped_by_a_gate_is_not_shipped() -> None:
    failed = {**RUN, "run_id": "x", "model": "b", "status": "failed"}
    runs = [{**RUN, "run_id": "run-a", "model": "a"}, failed]
    made = report(number("a", 0.5), runs=runs, checks=[["run-a", "rows", "error", 1.0, 0.0, False, "few"]])
    opening = make_opening(made)
    assert opening.shipped == ("On test no model can be shipped.",)
    assert opening.events == ("A gate failed: rows (a): few.", "b failed: see Runs.")


def test_figures_of_an_earlier_attempt_are_called_that() -> None:
    again = {**RUN, "run_id": "x", "model": "a", "status": "failed", "started_at": "2026-01-05 09:00:00"}
    runs = [{**RUN, "run_id": "run-a", "model": "a", "started_at": "2026-01-05 08:00:00"}, again]
    opening = make_opening(report(number("a", 0.5), runs=runs))
    assert opening.tone == "warn" and opening.verdict.endswith("are of an earlier one: a")
    assert opening.events == ("a's last attempt failed: its figures are of an earlier one.",)
    assert opening.shipped[0].endswith("0.5000, of an earlier attempt, since its last one failed.")
    other = {**again, "run_id": "y", "model": "b"}
    assert make_opening(report(number("a", 0.5), runs=[*runs, other])).verdict == "b failed"


@pytest.mark.parametrize("has_rules", [False, True])
def test_a_model_without_a_value_is_named(has_rules: bool) -> None:
    some = replace(report(number("a", 0.5), number("b", None)), has_rules=has_rules)
    assert make_opening(some).tone == "warn" and make_opening(some).verdict == "No value for b on test"
    assert make_opening(report(number("a", None))).verdict == "No model of this night has a value"


# ------------------------------------------------------------------------------- what was found, on what


def make_two_parts(
    places: dict[str, tuple[float, float]], half: float, kinds: dict[str, str], **more: Any
) -> Report:
    """A report of values on test and in the open loop, with intervals of a half width."""
    rows = [
        number(model, v, part=part, ci_low=v - half, ci_high=v + half, model_kind=kinds.get(model, "als"))
        for model, values in places.items()
        for part, v in zip(("test", "open_loop"), values, strict=True)
    ]
    return report(*rows, **more)


DEMO = {
    "best": (0.5, 0.4), "second": (0.4, 0.2), "third": (0.3, 0.3),
    "popular": (0.2, 0.05), "random": (0.1, 0.1), "truth": (0.9, 0.01),
}  # fmt: skip


@pytest.mark.parametrize(
    ("half", "chance"),
    [
        (0.01, "."),
        (0.03, "; the order of the two may be chance on open_loop."),
        (0.2, "; the order of the two may be chance on test and on open_loop."),
    ],
)
def test_the_first_sentence_says_the_finding(half: float, chance: str) -> None:
    """popular falls below random; second and third change places too, and truth, which is no model, falls
    to the end."""
    made = make_two_parts(DEMO, half, {"random": "random", "truth": "truth"})
    opening = make_opening(made)
    expected = f"popular is fifth on test and fifth, below random, on open_loop (ndcg@10){chance}"
    assert opening.finding == expected
    assert opening.sentences[0] == opening.finding == leaderboard_text(made).splitlines()[1]
    assert opening.sentences[-1] == "Every model has a value; there is no earlier night to compare with."
    assert f'<p class="verdict">{opening.finding}</p>' in render_html(made)
    without = {model: values for model, values in DEMO.items() if model != "truth"}
    last = make_opening(make_two_parts(without, half, {"random": "random"}))
    assert last.finding.startswith(
        "popular is fourth on test and last, below random, on open_loop (ndcg@10)"
    )
    others = {model: values for model, values in without.items() if model != "random"}
    other = make_opening(make_two_parts(others, half, {})).finding
    assert other.startswith("second is second on test and third, below third, on open_loop")
    agreed = {"best": (0.5, 0.4), "second": (0.4, 0.2)}
    calm = make_opening(make_two_parts(agreed, half, {}))
    assert not calm.finding and calm.sentences[0].startswith("Best on test that can be shipped: best")


def test_what_went_wrong_comes_before_the_finding() -> None:
    made = make_two_parts(DEMO, 0.01, {"random": "random"})
    opening = make_opening(replace(made, falls=(fall(),)))
    assert opening.sentences[0].startswith("Do not ship ours") and opening.sentences[1] == opening.finding


def test_a_paired_test_says_whether_a_finding_may_be_chance() -> None:
    """Intervals overlap on both parts; a test tells popular from random on test, none in the open loop."""
    made = make_two_parts(DEMO, 0.2, {"random": "random"})
    pairs = [("popular", "random", "test", 0.01), ("popular", "random", "open_loop", 0.3)]
    rows = [
        {**COMPARED, "kind": "pair", "model": m, "other": o, "part": part, "p_holm": p}
        for m, o, part, p in pairs
    ]
    tested = add_tests(made, pd.DataFrame(rows, columns=list(COMPARED_COLUMNS)))
    assert make_opening(tested).finding.endswith("; the order of the two may be chance on open_loop.")


def test_what_was_evaluated_stands_beside_the_finding() -> None:
    """4 of 40 test users have a value; the log runs over the days of its zone."""
    counts = {"train": (800, 50, 60), "test": (200, 40, 55), "open_loop": (1234, 4, 60)}
    facts: list[list[Any]] = [
        ["split1", part, fact, float(n), None]
        for part, sizes in counts.items()
        for fact, n in zip(("rows", "users", "items"), sizes, strict=True)
    ]
    times = {"oldest_event": "2026-01-01 12:00:00 UTC", "newest_event": "2026-01-30 12:00:00 UTC"}
    facts += [["split1", "log", fact, 1.0, text] for fact, text in times.items()]
    made = make_two_parts(DEMO, 0.01, {}, manifests=facts)
    said = (
        "Evaluated on world: test, 200 rows of 40 users (4 with a value) and 55 items; open_loop, 1,234 "
        "rows of 4 users and 60 items; a log of 30 days, 2026-01-01 to 2026-01-30."
    )
    assert make_opening(made).evaluated == said
    assert said in render_html(made) and leaderboard_text(made).splitlines()[2] == said
    period = {
        "period_begin": "2026-01-28 23:00:00 UTC, 2026-01-29 00:00:00 Europe/Berlin",
        "period_end": "2026-01-29 23:00:00 UTC, 2026-01-30 00:00:00 Europe/Berlin",
    }
    facts += [["split1", "log", fact, 1.0, text] for fact, text in period.items()]
    dated = make_opening(make_two_parts(DEMO, 0.01, {}, manifests=facts)).evaluated
    assert dated.endswith("; tested from 2026-01-29 00:00 to 2026-01-30 00:00 Europe/Berlin.")
    assert make_opening(make_two_parts(DEMO, 0.01, {}, manifests=facts[:1])).evaluated == ""
    rated = report(number("a", 0.5, metric="rmse", k=None), headline="rmse", manifests=facts[:9])
    assert make_opening(rated).evaluated == "Evaluated on world: test, 200 rows of 40 users and 55 items."


def test_a_model_called_truth_is_called_what_it_is() -> None:
    what = "truth (the world's own scores, no model)"
    made = make_two_parts({"truth": (0.9, 0.3), "a": (0.5, 0.6)}, 0.01, {"truth": "truth"})
    assert f"{what} is above a" in made.summary[0] and f"{what} moves as far" not in made.summary[-1]
    assert make_opening(made).shipped[0].endswith(f"above it: {what}.")
    page, text = render_html(made), leaderboard_text(made)
    assert page.count('truth<span class="kind">the world&#39;s own scores, no model</span>') == 2
    assert "\ntruth: the world's own scores, no model\n" in text
    fell = make_opening(replace(made, falls=(fall(is_shipped=False, model="truth"),)))
    assert fell.events[0].startswith(f"{what} fell by two thirds")
    alone = report(number("truth", 0.5, model_kind="truth"))
    assert alone.summary == (f"{what} leads with ndcg@10 0.5000; there is no other model.",)


def test_findings_that_the_terminal_has_no_room_for_are_named() -> None:
    """Seven checks that did not pass; among them ids of a model's lists that the night does not know."""
    names = [*(f"a{n}" for n in range(5)), "item_id of model a not in catalogue", "lists without rows"]
    checks = [["run-a", name, "warning", 1.0, 0.0, False, "words"] for name in names]
    text = leaderboard_text(report(number("a", 0.5), checks=checks))
    line = "warning: 2 more did not pass: item_id of model a not in catalogue, lists without rows"
    assert text.endswith("\n" + line) and line in list_conclusions(text)


def test_notes_come_after_the_links(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [number("t", 0.5, model_kind="truth")]
    checks = [["run-t", "test: tied truth items", "warning", 0.5, 0.1, False, "tied"]]
    print_board(leaderboard_text(report(*rows, checks=checks)), ["report: there", "ask in SQL:"])
    *_, link, ask, note = capsys.readouterr().out.splitlines()
    assert (link, ask) == ("report: there", "ask in SQL:") and note.startswith(
        "1 note of no consequence is"
    )
    print_board(leaderboard_text(report(*rows)), ["report: there"])
    assert capsys.readouterr().out.endswith("\nreport: there\n")


def test_a_printed_command_is_what_a_person_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "recbench"
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    line = "query leaderboard --warehouse DIR"
    assert query_command("DIR", "leaderboard") == f"{script.with_name('python')} -m recbench_spark {line}"
    script.parent.mkdir()
    script.touch(mode=0o755)
    assert query_command("DIR", "leaderboard") == f"{script} {line}"
    assert command_anywhere("query", "a b") == f"{script} query 'a b'"
    monkeypatch.chdir(tmp_path)
    assert query_command("DIR", "leaderboard") == f"bin/recbench {line}"
    monkeypatch.setenv("PATH", str(script.parent))
    assert query_command("DIR", "leaderboard") == f"recbench {line}"


# ------------------------------------------------------------------------------- nights


def test_rows_have_their_change_and_their_last_nights() -> None:
    made = make_fallen_night()
    rows = {row.model: row for row in made.leaderboards[0].rows}
    trend = rows["ours"].trend
    assert trend is not None and trend.change == pytest.approx(-0.1) and trend.other_date == "2026-01-04"
    assert rows["popular"].trend is None and rows["ours"].fell and not rows["popular"].fell


@pytest.mark.parametrize(
    "other", [{"definition": "v2"}, {"split": "RO_RS 0.5"}, {"dataset": "else"}, {"estimator": "ips"}]
)
def test_nights_under_another_meaning_are_no_trend(other: dict[str, Any]) -> None:
    nights = [("2026-01-04", 0.3), ("2026-01-05", 0.2)]
    made = add_nights(report(number("a", 0.2)), history({"a": nights}, **other), ())
    assert made.leaderboards[0].rows[0].trend is None


def test_the_page_marks_the_row_and_draws_nights_and_comparisons() -> None:
    page = render_html(make_fallen_night())
    (row,) = re.findall(r'<tr class="fell"><td class="num place">.*?</tr>', page, flags=re.DOTALL)
    assert "ours" in row and "regressed" in row and "-0.1000" in row
    assert "the last 2 nights: 2026-01-04 0.3000, 2026-01-05 0.2000" in row
    assert 'id="nights"' in page and 'id="comparisons"' in page and "ndcg@10 over nights" in page
    assert "its lists changed on 2026-02-03" in page and "&lt; 0.0001" in page
    assert page.index("Do not ship ours") < page.index('id="leaderboard"')


def test_the_opening_says_how_many_events_it_leaves_out() -> None:
    runs = [{**RUN, "run_id": f"x{n}", "model": f"m{n}", "status": "failed"} for n in range(8)]
    gates = tuple(CheckRow(f"gate {n}", "error", False, 1.0, 0.0, "none", ("a",)) for n in range(7))
    events = make_opening(replace(report(number("a", 0.5), runs=runs), checks=gates)).events
    assert "2 more in the table checks." in events and "3 more that failed, in Runs." in events


def test_comparisons_are_those_with_the_baseline_and_with_earlier_nights() -> None:
    pair = {**COMPARED, "kind": "pair", "other": "popular", "regressed": False}
    rows = [COMPARED, {**pair, "with_baseline": True}, {**pair, "other": "als"}]
    made = make_pairs_compared(pd.DataFrame(rows, columns=list(COMPARED_COLUMNS)))
    assert [(one.kind, one.other) for one in made] == [("pair", "popular"), ("previous", "2026-02-02")]
    assert made[0].gap.interval == (-0.07, -0.06) and made[0].gap.value == -0.065


def test_only_a_night_with_the_truth_speaks_of_it() -> None:
    whole = {"ci_low": 0.1, "ci_high": 0.9}
    assert "does not know the truth" not in render_html(report(number("a", 0.5, **whole)))
    both = report(number("a", 0.5, **whole), number("t", 0.6, model_kind="truth", **whole))
    assert "does not know the truth" in render_html(both)


@pytest.mark.parametrize(("value", "text"), [(-0.00001, "0.0000"), (0.5, "+0.5000"), (-0.5, "-0.5000")])
def test_what_the_digits_do_not_show_has_no_sign(value: float, text: str) -> None:
    assert format_signed(value) == text


def test_a_page_shows_no_zero_with_a_sign() -> None:
    tiny = -0.00001
    row: dict[str, Any] = {"metric": "pe", "k": None}
    made = report(number("a", tiny, ci_low=tiny, ci_high=tiny, **row), headline="pe")
    moved = {**row, "value": tiny, "other_value": tiny, "difference": tiny, "model": "a"}
    pairs = make_pairs_compared(pd.DataFrame([{**COMPARED, **moved}]))
    nights = history({"a": [("2026-01-04", tiny), ("2026-01-05", tiny)]}, **row)
    made = add_nights(replace(made, falls=(fall(**moved),)), nights, pairs)
    page = render_html(made) + leaderboard_text(made)
    assert "moved by 0.0000: pe from 0.0000 to 0.0000" in page and "-0.0000" not in page


# ------------------------------------------------------------------------------- advice and terms


def test_findings_are_grouped_by_what_to_do_and_the_world_s_nature_is_a_note() -> None:
    kinds = {"t": "truth", "a": "als"}
    checks = [
        [f"run-{model}", "test: tied truth items", "warning", 0.5, 0.1, False, "tied"] for model in kinds
    ]
    rows = [number(model, 0.5, model_kind=kind) for model, kind in kinds.items()]
    both = group_findings(report(*rows, checks=checks))
    assert [one.title for one in both] == ["Break ties"]
    noted = report(*rows, checks=checks[:1])
    assert not group_findings(noted) and [row.models for row in split_notes(noted)[1]] == [("t",)]
    page = render_html(noted)
    # The notes are the last thing of the section on checks; the first screen does not speak of them.
    assert page.index("1 note of no consequence") > page.index('id="checks"')
    assert page.count("1 note") == 1 and page.count('<span class="tag soft">note</span>') == 1
    assert '<span class="good">nothing to do</span>' in page
    text = leaderboard_text(noted)
    assert text.endswith("\n\n1 note of no consequence is at the end of the report's section on checks")
    assert "warning: test: tied truth items" in leaderboard_text(report(*rows, checks=checks))


def test_a_model_of_all_users_has_no_excuse_for_users_without_output() -> None:
    row = CheckRow("test: users without output", "warning", False, 1.0, 0.0, "x", ("a",))
    titles = {kind: choose_advice(row, {"a": kind})[0] for kind in ("popular", "truth", "published")}
    assert titles == {"popular": "Look at a model's output", "truth": "Notes", "published": "Notes"}


def test_a_check_with_two_excuses_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    row = CheckRow("test: tied truth items, users without output", "warning", False, 1.0, 0.0, "x", ("a",))
    monkeypatch.setattr(
        advice, "BY_NATURE", {"users without output": {"truth"}, "tied truth items": {"popular"}}
    )
    assert {choose_advice(row, {"a": kind})[0] for kind in ("truth", "popular")} == {"Notes"}


def test_what_a_generated_world_leaves_out_is_a_note_for_models_that_are_fitted_here() -> None:
    kinds = {"a": "als", "own": "lists"}
    rows = [number(model, 0.5, model_kind=kind) for model, kind in kinds.items()]
    checks = [
        [f"run-{model}", "test: users without output", "warning", n, 0.0, False, "they count 0"]
        for n, model in enumerate(kinds, 1)
    ]
    runs = [
        {**RUN, "run_id": f"run-{model}", "model": model, "config_json": '{"dataset": {"reader": "world"}}'}
        for model in kinds
    ]
    made = report(*rows, checks=checks, runs=runs)
    (advice_on_output,), (note,) = group_findings(made), split_notes(made)[1]
    assert advice_on_output.title == "Look at a model's output"
    assert (advice_on_output.findings[0][2], note.models) == ("own", ("a",))
    (of_a_log,) = group_findings(report(*rows, checks=checks))
    assert of_a_log.title == "Look at a model's output" and len(of_a_log.findings) == 2


def test_every_finding_has_advice() -> None:
    row = CheckRow("never heard of", "warning", False, 1.0, 0.0, "x", ("a",))
    assert choose_advice(row, {"a": "als"})[0] == "Look at these"
    assert choose_advice(replace(row, severity="error"), {})[0] == "Failed gates"


def test_counts_of_users_that_differ_are_explained_and_equal_ones_are_not() -> None:
    runs = [{**RUN, "run_id": "run-a", "model": "a", "n_users": 9}]
    said = explain_users(report(number("a", 0.5), runs=runs))
    assert said[0].startswith("Leaderboard of test: 4 users") and said[1].startswith("Runs: 9 users")
    assert explain_users(report(number("a", 0.5))) == ()
    predicted = explain_users(report(number("a", 0.5, metric="rmse", k=None), headline="rmse", runs=runs))
    assert predicted[0] == "Leaderboard of test: 4 rows with a prediction, not users."
    rated, ranked = (
        report(number("a", 0.5, metric="rmse", k=None), headline="rmse"),
        report(number("a", 0.5)),
    )
    for facts, head, other in ((rated, "rows", "users"), (ranked, "users", "rows")):
        assert leaderboard_text(facts).splitlines()[4].split()[-1] == head
        page = render_html(facts)
        assert f'href="#term-{head}"' in page and f'href="#term-{other}"' not in page


def test_every_metric_has_a_text() -> None:
    assert METRICS.keys() == {*ABOUT, "dcg"}
    assert "AUC x positives" in METRICS["gauc"] and METRICS["rmse"].endswith("Small is best.")


def test_terms_of_the_page_stand_in_the_glossary_and_are_linked() -> None:
    made = make_fallen_night()
    page = render_html(made)
    keys = {key for key, _, _ in list_terms(made)}
    assert {"metric-ndcg", "since", "regression", "users", "verdict"} <= keys and "tau" not in keys
    assert all(f'id="term-{key}"' in page for key in keys)
    assert all(text.endswith(".") for text in (*METRICS.values(), *(text for _, text in TERMS.values())))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(re.findall(r'id="([^"]+)"', page))


def test_regions_that_scroll_can_be_reached_by_keys() -> None:
    page = render_html(make_fallen_night())
    cards = re.findall(r'<div class="card[^>]*>\s*<table', page)
    assert cards and all('tabindex="0"' in card and "aria-label=" in card for card in cards)
    assert "minmax(min(460px, 100%), 1fr)" in page
    assert min(float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", page)) >= 11
