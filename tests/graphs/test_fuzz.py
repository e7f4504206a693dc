"""Hundreds of small, odd lists of edges: each is refused in words, or is the graph that it says."""

from __future__ import annotations

import csv
import io
import math
import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from recbench_spark.errors import RecbenchError
from recbench_spark.graphs.build import build_graph, read_ids
from recbench_spark.graphs.kernels.forms import LayerForm
from recbench_spark.graphs.settings import GraphSource
from tests.graphs import oracle
from tests.graphs.local import Context
from tests.graphs.test_layers import compute_expected, make_model, run_layers
from tests.id_rule import make_csv_ids

ODD = ("", " 7", "7.0", "007", "-3", "+3", "1e3", "10.5", "u1", "NA", "nan", "\u00f8", "a b", '"x"')
ODD = (*ODD, "9" * 18, "9" * 19)
HEAVY = ("", "nan", "-1", "0", "1e39", "1e-50", "2,5", "x", "1_0", " 2", "-1e-60", "inf")


def drawn_text(draw: random.Random) -> tuple[str, bool]:
    """A list of edges as text, whether its edges have weights; most are sound but for a cell or two."""
    weighted, names = draw.random() < 0.5, draw.random() < 0.7
    text = draw.random() < 0.3
    pool = [f"n{n}" if text else str(n) for n in range(draw.randrange(1, 9))]
    rows = [[draw.choice(pool), draw.choice(pool)] for _ in range(draw.randrange(1, 12))]
    for row in rows if weighted else ():
        row.append(str(draw.choice([0, 0.5, 1, 3])))
    for _ in range(draw.choice([0, 0, 1, 2])):
        row = draw.choice(rows)
        place = draw.randrange(len(row))
        row[place] = draw.choice(HEAVY if place == 2 else ODD)
    if draw.random() < 0.05:
        draw.choice(rows).append("more")
    out = io.StringIO()
    writer = csv.writer(out, quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), lineterminator="\n")
    writer.writerows([["src", "dst", "weight"][: 2 + weighted], *rows] if names or text else rows)
    return out.getvalue(), weighted


def as_written(text: str, weighted: bool) -> list[tuple[str | None, str | None, float]] | None:
    """The edges of a text by Python's own reader and the rule of ids; None where lines differ in length."""
    rows = list(csv.reader(io.StringIO(text)))
    rows = rows[1:] if rows[0][0] == "src" else rows
    if len({len(row) for row in rows}) > 1:
        return None
    quoted = '"src"' in text or text.startswith('"')
    ends = [make_csv_ids([row[n] if row[n] or quoted else None for row in rows]) for n in (0, 1)]
    weights = [float(row[2]) if weighted and re.fullmatch(r" ?[-+.\w]+", row[2]) else 1.0 for row in rows]
    return list(zip(*ends, weights, strict=True))


def count_edges(graph: Any) -> Counter:
    names = [str(i) for block in graph.blocks for i in read_ids(graph, block).to_pylist()]
    result: Counter = Counter()
    for block in graph.blocks:
        edges = graph.csr(block)
        for e in range(edges.edges):
            row = int(np.searchsorted(edges.indptr, e, side="right")) - 1
            weight = 1.0 if edges.weight is None else float(edges.weight[e])
            result[names[edges.src[e]], names[block.first + row], weight] += 1
    return result


@pytest.mark.parametrize("seed", range(3))
def test_a_list_of_edges_is_refused_in_words_or_taken_as_it_is_written(seed, tmp_path) -> None:
    draw, taken = random.Random(seed), 0
    for n in range(40):
        text, weighted = drawn_text(draw)
        path = tmp_path / f"{n}.csv"
        path.write_text(text)
        try:
            source = GraphSource(edges=str(path), weighted=weighted)
            graph = build_graph(Context(), source, "g", tmp_path / str(n), draw.choice([1, 3]))
        except RecbenchError as error:
            assert error.hint and "\n" not in error.message, text
            continue
        taken += 1
        want = as_written(text, weighted)
        assert want is not None, text
        with np.errstate(over="ignore"):
            assert count_edges(graph) == Counter((s, d, float(np.float32(w))) for s, d, w in want), text
        assert all(math.isfinite(w) and w >= 0 and s is not None and d is not None for s, d, w in want), (
            text
        )
    assert taken > 10


@pytest.mark.parametrize("seed", range(2))
def test_what_is_taken_is_embedded_as_the_equations_say(seed, tmp_path) -> None:
    draw = random.Random(seed)
    for n in range(6):
        sizes = draw.randrange(9, 20), draw.randrange(1, 40), draw.randrange(9)
        drawn = oracle.multigraph(*sizes, seed + n)
        edges, nodes = drawn.write(tmp_path / f"e{n}", pieces=draw.randrange(1, 4))
        requests = {"weighted": draw.random() < 0.5, "directed": draw.random() < 0.5}
        requests["self_loops"] = draw.choice(["keep", "drop"])
        source = GraphSource(edges=edges, nodes={"node": nodes}, **requests)
        graph = build_graph(Context(), source, "g", tmp_path / f"g{n}", draw.choice([1, 2, 5]))
        rows = [(s, d, w if requests["weighted"] else 1.0) for s, d, w in drawn.edges]
        rows = [row for row in rows if requests["self_loops"] == "keep" or row[0] != row[1]]
        same = oracle.Drawn(drawn.ids, rows)
        same = same if requests["directed"] else same.both_ways()
        kind = draw.choice(["sum", "mean", "importance", "max", "gcn"])
        form = LayerForm("sage", kind, draw.randrange(1, 25), 7, normalise=draw.random() < 0.5)
        for plan in ("R", "G", "S"):
            model, weights = make_model(graph, same, (form,), tmp_path / f"{n}{plan}", batch=1 + n)
            result = run_layers(graph, model, plan)
            want = compute_expected(graph, same, (form,), weights)
            places = {value: place for place, value in enumerate(same.ids)}
            order = [places[i] for block in graph.blocks for i in read_ids(graph, block).to_pylist()]
            np.testing.assert_allclose(result, want[order], rtol=1e-4, atol=2e-5)
