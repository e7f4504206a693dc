"""Compare tonight's models beyond means, where the file asks for it.

By the spread of values over users, gaps between groups, rankings without a cut-off, and several figures.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from recbench_spark.analyses.comparisons.counted import name_owners
from recbench_spark.analyses.comparisons.differences import ComparisonGroup, ComparisonPlan
from recbench_spark.analyses.comparisons.fronts import list_fronts, list_gaps
from recbench_spark.analyses.comparisons.preferences import PreferencePlan, compare_preferences
from recbench_spark.analyses.comparisons.tables import name_results
from recbench_spark.config import Comparisons
from recbench_spark.night.compared_rows import add_facts, open_runs, read_numbers
from recbench_spark.night.measure_checks import parse_headline
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.schemas import FRONTS, GROUP_GAPS, PREFERENCES, RANKINGS, USER_SPREADS
from recbench_spark.storage.commits import Addition


def select_tonight(night: BenchmarkNight, plan: ComparisonPlan) -> ComparisonPlan:
    """Return the plan with one group: tonight's models, also where there is one."""
    places = [place for place, run in enumerate(plan.runs) if run.logical_date == night.logical_date]
    return replace(plan, groups=(ComparisonGroup("pair", tuple(places)),))


def compare_beyond_means(
    night: BenchmarkNight, plan: ComparisonPlan, name: str, spreads: pa.Table | None
) -> list[Addition]:
    """Compare tonight's models by users, groups and several figures, where the file asks for it.

    Shuffles tonight's rankings once by user. The driver holds the numbers of tonight's runs.
    """
    wanted, benchmark = night.benchmark.comparisons or Comparisons(), night.benchmark
    if not wanted.users and not wanted.fronts:
        return []
    tonight = select_tonight(night, plan)
    run_ids = [tonight.runs[place].run_id for place in tonight.groups[0].runs]
    tables = [(USER_SPREADS, name_owners(spreads, plan.numbers))] if spreads is not None else []
    numbers = read_numbers(night.store, run_ids)
    fronts = list_fronts(numbers, tonight, wanted.fronts)
    tables.append((FRONTS, pa.Table.from_pylist(fronts, name_results(FRONTS))))
    if wanted.users:
        gaps = list_gaps(numbers, tonight, benchmark.user_slices)
        tables.append((GROUP_GAPS, pa.Table.from_pylist(gaps, name_results(GROUP_GAPS))))
        rankings, tasks = open_runs(night.store, RANKINGS, run_ids)
        preferred = PreferencePlan(tonight, parse_headline(benchmark), night.definition.threshold)
        tables.append((PREFERENCES, compare_preferences(rankings, preferred, tasks)))
    facts = {"comparison_id": name, "suite": benchmark.name, "compared_at": datetime.now(UTC)}
    return [
        Addition(table, name, add_facts(rows, facts, table), named_by="comparison_id")
        for table, rows in tables
        if len(rows)
    ]
