"""Load, check and dry-run mutated benchmark files in this process.

A file that the job accepts must have the properties of `config_properties`. A harmless change (order,
quotes, comments, other YAML syntax) must load the same values. A file that is refused must end with exit
code 2, one sentence and a hint, and name the file or key.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from recbench_spark import cli
from recbench_spark.commands import dry_runs, nightly
from recbench_spark.config import load_benchmark
from recbench_spark.errors import FallbackToSpark
from recbench_spark.sources import arrow_files, table_pieces
from recbench_spark.sources.table_pieces import find_place
from tests.faults.bases import texts
from tests.faults.campaign import Case, Verdict
from tests.faults.config_properties import find_broken_property

BASES = texts()
Path_ = tuple[Any, ...]
DAY = "2026-03-04"

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**9, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**70, -(2**63) - 1, 0.5,
    1.0,
    1.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf"), "", " ", "\t", "x", "é", "日本語",
    "\u202e", "🙂", "a" * 70, "a" * 5000, "1", "1.0", "1e3", "0x10", "1_0", " 7 ", "nan", "inf", "true",
    "no",
    "None", "null", "~", "{logical_date}", "{logical_date:%Y}", "{logical_date:%H}", "{other}", "{a,b}",
    "%s",
    "../../x", "a/b", "a b", "a%20b", "'; DROP TABLE runs; --", "$HOME", "s3://key:secret@bucket/x",
    "https://u@h/x", "http" + "://h/x?token=abc", [], {}, [[]], [None], [True], [1, 1], [{}], {"a": 1},
    {"a": {}},
    {1: 2}, {None: 1}, [[1, 2], [3]], date(2026, 1, 31), datetime(2026, 1, 31, 5), b"demo", b"\xff", {1,
    2},
    {"ndcg", "recall", "hit"}, {1, 5, 10}, {"test"}, {"x": True}, {"rank": [True]}, {"ndcg@10": True},
    "2026-02-30", "2026-01-31", "9999-12-31", "0001-01-01", "Europe/Rome", "+02:00",
    "recbench_spark.models.settings:ModelConfig", "recbench_spark.models.settings:MllibAlsModel", "os:path",
    ":",
    "a:b",
    ".:x", "..a:b", "tests.outside_model:NewestModel", "tests.leaving_module:Model",
    "AKIA" + "Q7" * 8, "https://h/" + "ASIA" + "Q7" * 8, "AIza" + "b-5" * 11 + "cd",
    "\ufeffx", "x\x7f", "\ud7ff", "\x85", "rating",
)  # fmt: skip

SETS = ("split.seed=7", "split.seed=x", "=1", "a", "a..b=1", ".=1", "models.0.name=q", "models.99.name=q",
        "models.popular.name=q", "evaluation.k=[1,2]", "evaluation.k=[1", "evaluation.slices=[]", "name=",
        "name=!!python/object:os.system x", "split={}", "split.seed.x=1", "dataset.world.users=1e3",
        "evaluation.definition.threshold=yes", "models.-1.name=z", "evaluation.parts.0=test", "x=1",
        "models=3",
        "evaluation.k.0=7", "dataset.options.a.b=1", "é=1", "description=a=b=c", "split.ratio=[.8,0,.2]",
        "models.0=null", "evaluation.slices.popularity.key=other", "headline=ndcg@0",
        "evaluation.k=&a [1, *a]")  # fmt: skip


class Mutant:
    """A mutated file: its text, the settings of `--set`, and the expected result."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.base = chance.choice(sorted(BASES))
        self.document: Any = yaml.safe_load(BASES[self.base])
        self.text: str | bytes | None = None
        self.sets: list[str] = []
        self.kinds: list[str] = []
        self.harmless = False
        self.key: str | None = None
        """The one wrong key, which the message must name."""

    def places(self) -> list[Path_]:
        return list(places(self.document))

    def some_key(self) -> Path_ | None:
        places_with_key = [place for place in self.places() if place and isinstance(place[-1], str)]
        return self.chance.choice(places_with_key) if places_with_key else None

    def content(self) -> str | bytes:
        return self.text if self.text is not None else dump(self.document)


def places(node: Any, here: Path_ = ()) -> Iterator[Path_]:
    yield here
    if isinstance(node, dict):
        for key in node:
            yield from places(node[key], (*here, key))
    elif isinstance(node, list):
        for n, entry in enumerate(node):
            yield from places(entry, (*here, n))


def at(document: Any, place: Path_) -> Any:
    for step in place:
        document = document[step]
    return document


def put(document: Any, place: Path_, value: Any) -> None:
    at(document, place[:-1])[place[-1]] = value


def dump(document: Any, **style: Any) -> str:
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, **style))


# ------------------------------------------------------------------------------- changes of documents


def misspell_key(mutant: Mutant) -> None:
    place = mutant.some_key()
    if place is None:
        return
    key, chance = place[-1], mutant.chance
    at_ = chance.randrange(len(key)) if key else 0
    wrong = chance.choice([
        key[:at_] + key[at_ + 1 :], key[:at_] + "x" + key[at_:], key.upper(), key.title(), key + "s",
        f" {key}",
        f"{key} ", key.replace("_", "-"), key[::-1], key[: at_] + key[at_ : at_ + 1] * 2 + key[at_ + 1 :],
    ])  # fmt: skip
    holder = at(mutant.document, place[:-1])
    if wrong in holder:
        return
    renamed = {wrong if name == key else name: value for name, value in holder.items()}
    holder.clear()
    holder.update(renamed)
    mutant.key = wrong


def add_unknown_key(mutant: Mutant) -> None:
    sections = [p for p in mutant.places() if isinstance(at(mutant.document, p), dict)]
    if sections:
        key = mutant.chance.choice(
            ["colour", "", "é", "a" * 400, "__class__", "model_config", "<", "name "]
        )
        at(mutant.document, mutant.chance.choice(sections))[key] = 1


def put_odd_value(mutant: Mutant) -> None:
    choices = [place for place in mutant.places() if place]
    if choices:
        put(mutant.document, mutant.chance.choice(choices), copy.deepcopy(mutant.chance.choice(ODD)))


def delete_value(mutant: Mutant) -> None:
    choices = [place for place in mutant.places() if place]
    if choices:
        place = mutant.chance.choice(choices)
        del at(mutant.document, place[:-1])[place[-1]]


def wrap_value(mutant: Mutant) -> None:
    choices = [place for place in mutant.places() if place]
    if choices:
        place = mutant.chance.choice(choices)
        value = at(mutant.document, place)
        put(
            mutant.document,
            place,
            mutant.chance.choice([[value], {"value": value}, [value, value], [[value]]]),
        )


def swap_values(mutant: Mutant) -> None:
    choices = [place for place in mutant.places() if place]
    if len(choices) > 1:
        one, other = mutant.chance.sample(choices, 2)
        if one[: len(other)] != other and other[: len(one)] != one:
            left, right = at(mutant.document, one), at(mutant.document, other)
            put(mutant.document, one, right)
            put(mutant.document, other, left)


def copy_section(mutant: Mutant) -> None:
    """Copy a section to another place."""
    sections = [p for p in mutant.places() if isinstance(at(mutant.document, p), dict | list)]
    place = mutant.some_key()
    if place:
        put(mutant.document, place, copy.deepcopy(at(mutant.document, mutant.chance.choice(sections))))


def repeat_entry(mutant: Mutant) -> None:
    """Repeat an entry of a list."""
    lists = [
        p for p in mutant.places() if isinstance(at(mutant.document, p), list) and at(mutant.document, p)
    ]
    if lists:
        entries = at(mutant.document, mutant.chance.choice(lists))
        entries.append(copy.deepcopy(mutant.chance.choice(entries)))


def change_number(mutant: Mutant) -> None:
    choices = [p for p in mutant.places() if type(at(mutant.document, p)) in (int, float)]
    if choices:
        place = mutant.chance.choice(choices)
        value = at(mutant.document, place)
        changed = [-value, value + 1, value * 10**9, value / 3, float(value), str(value), f"{value}.0",
        value + 1e-12,
                   f" {value}", f"+{value}", f"{value}e0", bool(value), [value], -value - 1,
                   value * 1e-9]  # fmt: skip
        put(mutant.document, place, mutant.chance.choice(changed))


def list_to_set(mutant: Mutant) -> None:
    """Turn a list into a set, whose order is random."""
    lists = [p for p in mutant.places() if p and isinstance(at(mutant.document, p), list)]
    if lists:
        place = mutant.chance.choice(lists)
        with contextlib.suppress(TypeError):
            put(mutant.document, place, set(at(mutant.document, place)))


KNOWN_WORDS = sorted({
    word for text in BASES.values() for word in re.findall(r"[a-z_]{2,}[a-z_0-9@]*", text)
} | {"global", "user", "temporal", "random", "given", "period", "folds", "uniform", "rated", "cosine",
"exact",
     "valid", "test", "open_loop", "naive_bayes", "true", "rating", "best", "all", "steck", "zero",
     "truth"})  # fmt: skip


def change_word(mutant: Mutant) -> None:
    choices = [p for p in mutant.places() if p and isinstance(at(mutant.document, p), str)]
    if choices:
        put(mutant.document, mutant.chance.choice(choices), mutant.chance.choice(KNOWN_WORDS))


def add_section(mutant: Mutant) -> None:
    """Add a section of another file."""
    other = yaml.safe_load(BASES[mutant.chance.choice(sorted(BASES))])
    sections = [
        p for p in places(other) if p and isinstance(p[-1], str) and isinstance(at(other, p[:-1]), dict)
    ]
    place = mutant.chance.choice(sections)
    with contextlib.suppress(KeyError, IndexError, TypeError):
        at(mutant.document, place[:-1])[place[-1]] = at(other, place)


CHANGES: tuple[Callable[[Mutant], None], ...] = (
    misspell_key, add_unknown_key, put_odd_value, put_odd_value, put_odd_value, delete_value,
    wrap_value, swap_values, copy_section, repeat_entry, change_number, list_to_set,
    change_number, change_word, change_word, add_section,
)  # fmt: skip

# ----------------------------------------------------------------------------------- changes of text


def rewrite_harmlessly(mutant: Mutant) -> None:
    """Write the same document in another way."""
    chance, document = mutant.chance, mutant.document
    kind = chance.randrange(9)
    text = dump(document)
    if kind == 0:
        text = dump(dict(chance.sample(sorted(document.items()), len(document))))
    elif kind == 1:
        text = dump(document, default_flow_style=True, width=10**6)
    elif kind == 2:
        text = json.dumps(document, default=str) if not holds_dates(document) else text
    elif kind == 3:
        text = dump(document, default_style='"') if False else dump(document, indent=7)
    elif kind == 4:
        text = "# a comment\n---\n" + text.replace("\n", "   # more\n", 1) + "...\n"
    elif kind == 5:
        text = text.replace("\n", "\r\n")
    elif kind == 6:
        text = "\ufeff" + text
    elif kind == 7:
        text = "%YAML 1.1\n---\n" + text
    else:
        text = dump(document, canonical=True)
    mutant.text, mutant.harmless = text, True


def holds_dates(node: Any) -> bool:
    if isinstance(node, dict | list):
        return any(holds_dates(entry) for entry in (node.values() if isinstance(node, dict) else node))
    return isinstance(node, date)


def tear(mutant: Mutant) -> None:
    text = dump(mutant.document)
    mutant.text = text[: mutant.chance.randrange(len(text))]


def flip_bytes(mutant: Mutant) -> None:
    raw = bytearray(dump(mutant.document).encode())
    for _ in range(mutant.chance.randint(1, 3)):
        raw[mutant.chance.randrange(len(raw))] = mutant.chance.randrange(256)
    mutant.text = bytes(raw)


def change_lines(mutant: Mutant) -> None:
    """Repeat, move, indent or delete a line, or add a tab."""
    lines = dump(mutant.document).splitlines()
    n = mutant.chance.randrange(len(lines))
    change = mutant.chance.randrange(6)
    if change == 0:
        lines.insert(mutant.chance.randrange(len(lines)), lines[n])
    elif change == 1:
        lines.insert(n, lines[n])
    elif change == 2:
        lines[n] = "\t" + lines[n]
    elif change == 3:
        lines[n] = "  " + lines[n]
    elif change == 4:
        lines[n] = lines[n].lstrip()
    else:
        del lines[n]
    mutant.text = "\n".join(lines) + "\n"


TRICKS = (
    "", "\n", "# nothing\n", "null\n", "[]\n", "{}\n", "7\n", "text\n", "--- \n{base}---\n{base}",
    "{base}{base}",
    "name: &a [*a]\n{base}", "x: &x {y: *z}\n{base}", "{base}description: &d é\nran_by: *d\n",
    "base: &b {name: q}\n<<: *b\n{base}", "<<: {description: q}\n{base}",
    "!!python/object/apply:os.system [id]\n",
    "{base}description: !!python/name:os.system\n", "{base}description: !!binary /w==\n",
    "{base}? [a]\n: 1\n",
    "{base}description: !!str 7\n", "{base}description: !own x\n", "{base}ran_by: |\n  line\n  line\n",
    "{base}ran_by: >-\n  a\n  b\n", "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
    "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
    "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n{base}",
    "[" * 5000 + "]" * 5000, "{base}description: \"\\ud800\"\n", "{base}description: \"\\0\"\n",
    "{base}description: !!int x\n", "{base}description: !!timestamp 2026-99-99\n",
    "{base}ran_by: 2026-99-99\n",
    "{base}evaluation: {{k: !!set {{1, 5}}}}\n", "{base}description: 1:30\n", "{base}ran_by: 017\n",
    "\x00", "%TAG ! x\n",
    "%YAML 9.9\n---\n{base}", "&a\n{base}", "*a\n", "{base}\x1b[31m\n",
    "{base}gates: !!omap [fact: users]\n", "a: b: c\n",
    "{base}description: 'it''s'\n", "{base}description: \"\\x41\"\n", "? {base}", "{base}1: 2\n",
    "{base}~: 2\n",
)  # fmt: skip


def apply_trick(mutant: Mutant) -> None:
    template = mutant.chance.choice(TRICKS)
    mutant.text = template.replace("{base}", dump(mutant.document)).replace("{{", "{").replace("}}", "}")


def change_encoding(mutant: Mutant) -> None:
    """Write the text in another encoding."""
    text = dump({**mutant.document, "ran_by": "é日"}) if isinstance(mutant.document, dict) else "é"
    coding = mutant.chance.choice(["utf-16", "utf-16-le", "latin-1", "utf-32", "utf-7", "cp500"])
    mutant.text = text.encode(coding, errors="replace")


TEXTS = (
    rewrite_harmlessly,
    rewrite_harmlessly,
    tear,
    flip_bytes,
    change_lines,
    change_lines,
    apply_trick,
    apply_trick,
    change_encoding,
)

# ------------------------------------------------------------------------------------------- a case


def make_mutant(case: Case) -> Mutant:
    """Make one to three changes of the document, or one of its text, or settings on the command line."""
    chance = case.draw()
    mutant = Mutant(chance)
    way = chance.random()
    if way < 0.62:
        for change in [chance.choice(CHANGES) for _ in range(chance.choice([1, 1, 1, 2, 3]))]:
            change(mutant)
            mutant.kinds.append(change.__name__)
        if mutant.kinds != ["misspell_key"]:
            mutant.key = None
    elif way < 0.9:
        change = chance.choice(TEXTS)
        change(mutant)
        mutant.kinds.append(change.__name__)
    else:
        mutant.sets = chance.sample(SETS, chance.choice([1, 1, 2]))
        mutant.kinds.append("set")
    return mutant


NAMES = (
    "night.yaml",
    "a b.yaml",
    "é日.yaml",
    "a%20b.yaml",
    "-x.yaml",
    "no_ending",
    "a\nb.yaml",
    "{logical_date}",
    "x.yaml",
)


def run(case: Case) -> Verdict:
    """Write the file, make a dry run of the job, and judge the result."""
    mutant = make_mutant(case)
    file = case.place / mutant.chance.choice(NAMES)
    text = mutant.content()
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    write_features(case.place)
    try:
        return judge(mutant, file, *dry_run(file, mutant.sets))
    finally:
        file.unlink()


def write_features(folder: Path) -> None:
    """Write the table of features that files name, since a dry run opens it."""
    place = folder / "world" / "items.parquet"
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        vectors = pa.array([[0.5, 0.25], [1.0, -1.0]], pa.list_(pa.float32()))
        pq.write_table(pa.table({"id": ["1", "2"], "vector": vectors}), place)


def dry_run(file: Path, sets: list[str]) -> tuple[Any, str, str]:
    """Return exit code, stdout and stderr of the job, in this process and in the folder of the file."""
    out, err = io.StringIO(), io.StringIO()
    file = file.absolute()
    argv = [
        f"--config={file}",
        "--warehouse",
        str(file.parent / "warehouse"),
        "--logical-date",
        DAY,
        "--dry-run",
    ]
    argv += [f"--set={one}" for one in sets]
    with contextlib.ExitStack() as stack:
        # Only settings are judged, so files at their paths are not read, but for those that are there.
        stack.enter_context(mock.patch.object(table_pieces, "find_place", find_present))
        stack.enter_context(mock.patch.object(arrow_files, "find_place", find_present))
        stack.enter_context(mock.patch.object(dry_runs, "open_raw_log", find_present))
        for context in (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)):
            stack.enter_context(context)
        stack.enter_context(contextlib.chdir(file.parent))
        try:
            cli.run(nightly.main, nightly.parser(), argv)
        except SystemExit as exit_:
            code = exit_.code
    return code, out.getvalue(), err.getvalue()


def find_present(place: Any) -> str:
    """Find a file that is there; say of all others, and of logs, that this process cannot look at them."""
    if not isinstance(place, str) or not Path(place).is_file():
        raise FallbackToSpark("not looked at")
    return find_place(place)


def judge(mutant: Mutant, file: Path, code: Any, out: str, err: str) -> Verdict:
    about = [f"{kind}: {'taken' if code == 0 else 'refused'}" for kind in mutant.kinds]
    case_text = f"{'+'.join(mutant.kinds)} of {mutant.base}"
    if (file.parent / "warehouse").exists():
        return Verdict.fail(f"{case_text}: a dry run wrote a warehouse", *about)
    missing = re.search(r"no such file or folder: (.+)", err)
    if code == 1 and missing and not mutant.harmless and missing[1] not in BASES[mutant.base]:
        return Verdict(about=about)  # another table of features, which may come later
    if code not in (0, 2):
        return Verdict.fail(f"{case_text}: exit code {code}: {err[:400]!r}", *about)
    wrong = judge_accepted(mutant, file, out, err) if code == 0 else judge_refused(mutant, file, out, err)
    return Verdict.fail(f"{case_text}: {wrong}", *about) if wrong else Verdict(about=about)


def judge_accepted(mutant: Mutant, file: Path, out: str, err: str) -> str | None:
    loaded = load_benchmark(str(file), mutant.sets)
    if mutant.harmless:
        plain = file.with_name("plain.yaml")
        plain.write_text(BASES[mutant.base], encoding="utf-8")
        try:
            return (
                None if load_benchmark(str(plain)) == loaded else "a harmless change loads something else"
            )
        finally:
            plain.unlink()
    if mutant.sets:
        return None  # what they mean is in the document that the job made; its own tests hold it
    return find_broken_property(read(mutant), loaded) or (f"said {err!r}" if err else None)


def read(mutant: Mutant) -> Any:
    """Read the document with PyYAML's own loader; libyaml alone takes a tab before a value."""
    content = mutant.content()
    text = content.decode() if isinstance(content, bytes) else content
    try:
        return yaml.load(text, yaml.SafeLoader)
    except yaml.YAMLError:
        return yaml.load(text, yaml.CSafeLoader)


def judge_refused(mutant: Mutant, file: Path, out: str, err: str) -> str | None:
    """Check for one sentence with a hint, and the key in it."""
    lines = err.strip().splitlines()
    if "Traceback" in err or "internal error" in err:
        return f"a trace: {err[:500]!r}"
    if not lines or not lines[0].startswith("error: ") or not re.match(r"  hint: \S", lines[-1]) or out:
        return f"not a sentence and a hint: {err[:400]!r}"
    if mutant.harmless:
        return f"a harmless change was refused: {err[:300]!r}"
    message = " ".join(err.split())
    if mutant.key is not None and mutant.key.strip() and " ".join(mutant.key.split()) not in message:
        return f"does not name the key {mutant.key!r}: {message[:300]}"
    return None
