"""Write docs/presets.md: one input, every preset's values side by side.

python -m tools.presets_table
"""

from __future__ import annotations

from pathlib import Path

from recbench_spark.core.definitions import PRESET_VERSIONS, PRESETS, make_definition
from tests.libraries.example import EXAMPLE, LISTS, TRUTH
from tests.libraries.inputs import our_values

PAGE = Path(__file__).resolve().parents[1] / "docs" / "presets.md"
COLUMNS = ("ndcg@3", "map@3", "mrr@3", "precision@3", "recall@3", "hit@3", "auc")

WHAT_DIFFERS = {
    "recbench": "The defaults. Every user with held-out items counts, and a missing list counts as 0.",
    "recbole": (
        "The same as the defaults. Its GAUC is the mean of the `auc` here, weighted by the users'"
        " relevant items."
    ),
    "replay": (
        "Among equal scores the larger item id comes first. RocAuc at a k beyond the list looks at"
        " ranked relevant items only."
    ),
    "mllib": "The rows of its input count: users with a list. A user without held-out items counts 0.",
    "recommenders": (
        "Users with both a list and held-out items count; NDCG is over all users with held-out items."
        " Its `map` (not `map_at_k`) is `ap_by=relevant`. Graded NDCG is `gain=linear` or"
        " `exponential`."
    ),
    "rectools": (
        "NDCG divides by the DCG of k hits, whatever is relevant. MAP divides by all relevant items."
        " `divide_by_achievable` is `ideal=min_k_relevant`, and `divide_by_k` is `ap_by=k`."
    ),
    "lenskit": (
        "Users with a list and held-out items count; in its precision also those without held-out"
        " items, as 0 (`users=output`). Ranks 1 and 2 have the same discount. Precision divides by the"
        " length of the list, recall by at most k, and AP by the shorter of list and truth. Graded NDCG"
        " is `gain=linear`: grades below 0 count 0, and an ideal of 0 gives 0. In its other metrics"
        " every row of the truth is relevant."
    ),
    "lenskit==2025.8.1": (
        "As `lenskit`, but a user without truth counts 0 (LensKit's AveragePrecision fails on such a"
        " user). It keeps grades below 0 in the DCG and in the ideal, which can then be 0 or below: no"
        " definition gives these values."
    ),
    "ranx": (
        "Gain is the grade (`ndcg_burges` is `gain=exponential`). MAP divides by all relevant items. A"
        " query whose every grade is 0 counts 0. trec_eval without `-c` is `users=both`, and its"
        " `recip_rank` is the uncut `mrr`."
    ),
    "cornac": (
        "Users that it knows count. Relevant means a rating of at least 1. MAP and MRR look at the"
        " whole list, whatever k is. Tied items share the last rank in MAP, and a tie wins nothing in"
        " AUC."
    ),
    "elliot": (
        "Users with both a list and held-out items count. The gain of NDCG is 2^(r - threshold + 1) -"
        " 1. Its MAP is the mean of precision@1 to precision@k. AUC (its GAUC) counts one more negative"
        " than there is."
    ),
    "recpack": (
        "Its HitK is the number of hits. Recall is its CalibratedRecallK (RecallK is `recall_by=relevant`)."
    ),
    "warprec": (
        "Users with held-out items count. The gain of nDCG is 2^(r + 1) - 1; nDCGRendle2020 is"
        " `gain=binary`. Among equal scores the larger hash of (seed, user, item) comes first; its seed"
        " is 42 unless another is set (`tie_seed`). It numbers users and items from 0 in the order of"
        " their ids: number the users in this way, and follow it to the item. `auc` is its GAUC, which"
        " leaves ties to the sorting routine; its AUC pools all users."
    ),
    "sklearn": (
        "`ndcg_score`: the gain is the grade, and ties count their mean over all orders. A row of zeros"
        " counts 0. With `ap_ties=last_rank` and `empty_users=leave_out` the uncut `map` is"
        " `label_ranking_average_precision_score`."
    ),
    "torchmetrics": (
        "RetrievalMAP divides by the hits among the first k. RetrievalNormalizedDCG takes the grade as"
        " gain, and is the only one that averages ties; the others leave them to the sorting routine."
        " Queries without relevant items count 0 (`empty_target_action`). It knows only items that have"
        " a score, and takes only scores above 0: its numbers are those of complete lists. Its AUROC takes"
        " the sigmoid of scores outside [0, 1], and large ones become equal: scale them into [0, 1]."
    ),
    "implicit": (
        "Users with held-out items count. Its precision is pooled: the hits of all users, divided by"
        " the sum of their min(k, relevant). It is the mean of `precision` here, weighted by min(k,"
        " relevant). Its auc takes training items as negatives and counts half of the pairs beyond k;"
        " it is not followed."
    ),
    "mlflow": (
        "The rows of its table count: users with a list (`users=truth`: a row without one counts 0). A row"
        " without truth counts 0; one without both has recall and NDCG of 1 there. The ideal list of NDCG"
        " is cut at the length of the list (issue 24541). Duplicates count again in precision and NDCG."
    ),
}

INTRODUCTION = """# One input, every library's numbers

`--preset NAME` gives the number that the library of this name gives, in the version below. This page
shows one small invented input and the values of each preset. `python -m tools.presets_table` writes the
page, and a test fails when the page is not current.

Tests compare each preset with the library itself on random inputs: short and missing lists, users without
held-out items, grades, ties (`make libraries`, then `pytest -m slow tests/libraries`). Elliot cannot be
installed from a package registry, so its preset follows the formulae in its source, in fixed cases.
"""

PROOF = """## Compared with the libraries

Random inputs of eight users each (`test_a_thousand_inputs`), on 26 and 27 November:

| library | inputs | values | largest difference |
| --- | --- | --- | --- |
| lenskit 2025.8.1 | 1,000, half of them tied | 53,000 | 2.2e-16 |
| mlflow 3.18.0 | 1,000, half of them tied | 36,000 | 2.2e-16 |
| implicit 0.7.3 | 1,000, half of them tied | 18,000 | 1.7e-16 |
| scikit-learn 1.9.1 | 1,000, half of them tied | 9,000 | below 1e-9 |
| warprec 2.2.8 (single precision) | 1,000, half of them tied | 90,500 | 9.5e-08 |
| torchmetrics 1.8 (single precision) | 1,000, untied | 41,000 | 1.4e-07 |
| ranx | 1,000, untied | 59,000 | 1.1e-16 |
| trec_eval | 1,000, untied | 34,000 | 2.2e-16 |
| cornac | 1,000, untied | 46,000 | 3.3e-16 |
| lenskit 2026.4.0 | 1,000, half of them tied | 53,000 | 2.2e-16 |
| rectools 0.19.0 | 1,000, half of them tied | 60,000 | 2.2e-16 |
| recommenders 1.2.1 | 1,000, half of them tied | 42,000 | 1.7e-16 |
| replay-rec 0.22.0 | 1,000, half of them tied | 37,000 | 2.2e-16 |
| recpack 0.3.6 | 1,000, untied | 42,000 | 2.2e-16 |
| recbole 1.2.1 (its weighted AUC is in single precision) | 1,000, untied | 37,000 | 1.1e-07 |

MLlib runs on Spark and follows in a test of its own; no definition gives Evidently's MAP, which exceeds 1.
"""

LIMITS = """## What a preset does not follow

- **An item twice in one list.** MLlib, recommenders, rectools, elliot and some metrics of replay
  count such a hit twice, and can exceed 1. recbench-spark keeps the first and counts the rest in `checks`.
- **Ties.** Where a library breaks ties by chance or by its sorting routine (recbole, recpack, ranx,
  cornac's NDCG, torchmetrics), its value lies between `ties=pessimistic` and `ties=optimistic`, except for
  `ap_by=hits`, where more hits can have a smaller mean precision. recommenders, rectools, lenskit, implicit
  and MLlib keep the order of their input. To follow them, pass ranks. trec_eval puts the larger
  document name first. This is `ties=id_descending` where ids are text.
- **Rows of relevance 0.** Libraries without grades take every row of the truth as relevant.
  recbench-spark takes only relevance above 0 (or `threshold`). Leave such rows out.
- **Grades in ranx's RBP** multiply its weights, and it can exceed 1. RBP of recbench-spark is binary.
- **MLlib from Python** takes grades and does not use them.
- **Evidently's MAP** (0.7.23) is given by no definition. Whether its rank k is relevant is read from the
  last row of a user among ranks 1 to k, in the order of the rows. So the value depends on that order and
  can exceed 1. One user has three items, of which the best alone is relevant: MAP@3 is 1.8333 where the
  rows are worst first, and 1 where they are best first (`tests/libraries/run_evidently.py`).
- **Metrics that share only a name** with a metric here: recpack's percentile ranking (pooled over users,
  in per cent), recommenders' r-precision (users without hits left out), rectools' partial AUC, replay's
  RocAuc at a k below the list's length, recbole's and elliot's pooled AUC.

## Beyond accuracy

Tests compare values with warprec (single precision: 1e-6 of a value) and rectools (1e-9) on 1,000
inputs each:

| here | warprec | rectools |
| --- | --- | --- |
| `aplt`, `aclt` | APLT, ACLT | |
| `popularity_reo`, `popularity_rsp` | PopREO (the absolute value), PopRSP | |
| `reo`, `rsp`, `subtopic_recall` | REO, RSP, SRecall | |
| `bias_disparity` | BiasDisparityBD (0 without a history) | |
| `serendipity` | | Serendipity |
| `category_diversity` | | IntraListDiversity by Hamming distance (0 for one entry) |
| `entropy` | ShannonEntropy | |
| `gini` times n / (n - 1), of n items | Gini | |
| `coverage` | ItemCoverage / n | CatalogCoverage, normalised |
| `mean_popularity` times the training users | ARP (an item that nobody has counts 1) | AvgRecPopularity |
| `novelty` | | MeanInvUserFreq |

WarpRec divides by k also where a list is shorter. EFD and EPC weigh hits by novelty, Intersection compares
two models, and PAP, MCC and Accuracy count what is not listed: no metric here is equal.
"""


def page() -> str:
    """Return the whole page."""
    values = {preset: our_values(EXAMPLE, make_definition(preset)) for preset in PRESETS}
    parts = [INTRODUCTION, PROOF, _input(), _values(values), _spread(values), _differences(), LIMITS]
    return "\n".join(parts)


def _input() -> str:
    users = sorted({*LISTS, *TRUTH}, key=int)
    rows = [
        (
            user,
            " ".join(str(item) for item, _ in LISTS.get(user, [])) or "none",
            " ".join(f"{item}:{grade}" if grade != 1 else str(item) for item, grade in TRUTH.get(user, []))
            or "none",
        )
        for user in users
    ]
    return "## The input\n\n" + _table(("user", "list, best first", "held-out items (:grade)"), rows)


def _values(values: dict[str, dict[str, float]]) -> str:
    rows = [
        (preset, PRESET_VERSIONS[preset], *(f"{numbers[column]:.4f}" for column in COLUMNS))
        for preset, numbers in values.items()
    ]
    return "## The values\n\n" + _table(("preset", "version", *COLUMNS), rows)


def _spread(values: dict[str, dict[str, float]]) -> str:
    lines = []
    for column in COLUMNS:
        low, high = (pick(values, key=lambda p: values[p][column]) for pick in (min, max))
        lines.append(
            f"- {column}: from {values[low][column]:.4f} ({low}) to {values[high][column]:.4f} ({high})"
        )
    return "## The spread on this one input\n\n" + "\n".join(lines) + "\n"


def _differences() -> str:
    lines = []
    for preset, sentence in WHAT_DIFFERS.items():
        axes = ", ".join(f"`{axis}={value}`" for axis, value in PRESETS[preset].items())
        lines.append(
            f"- **{preset} {PRESET_VERSIONS[preset]}**: {sentence}" + (f" ({axes})" if axes else "")
        )
    return "## What differs\n\n" + "\n".join(lines) + "\n"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
