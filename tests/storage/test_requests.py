"""Requests to object storage: a look at a table asks for what is new, and small files are fetched once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from recbench_spark.schemas import TRIALS, arrow_rows
from recbench_spark.storage import append_names, delta_files, delta_tables
from recbench_spark.storage.delta_tables import hold_table, open_table, read_dataset
from recbench_spark.storage.object_access import delta_options
from recbench_spark.storage.objects import list_objects, remove_objects
from recbench_spark.storage.table_folders import create_local_table, create_object_table, has_commit
from tests.faulty_storage import Faults, Proxy, disturb
from tests.object_storage import S3Server
from tests.storage.test_missing_rows import trial


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with disturb(s3_server, Faults()) as running:
        for name, value in running.server.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def place(proxy: Proxy) -> str:
    """URI of a new table `trials`."""
    uri = f"s3://{proxy.server.make_bucket()}/trials"
    create_object_table(uri, TRIALS)
    return uri


def count_requests(proxy: Proxy, work: Callable[[], object]) -> Counter[str]:
    """Return the requests of some work by method; a listing counts as LIST."""
    proxy.take_requests()
    work()
    requests = proxy.take_requests()
    return Counter("LIST" if "list-type" in one.path else one.method for one in requests)


def append_trial(place: str, number: int) -> None:
    """Append a row as a store does."""
    delta_files.append_rows(place, arrow_rows([trial(number)], TRIALS), f"trials/{number}")


def append_elsewhere(place: str, number: int) -> None:
    """Append a row as another process would."""
    table = DeltaTable(place, storage_options=delta_options(place))
    write_deltalake(table, arrow_rows([trial(number)], TRIALS), mode="append")


def read_ids(place: str) -> list[str]:
    return sorted(delta_files.read_rows(place, columns=["trial_id"]).column(0).to_pylist())


def test_a_second_look_reads_new_commits_and_new_files_alone(proxy: Proxy, place: str) -> None:
    for number in range(3):
        append_trial(place, number)
    assert read_ids(place) == ["t0", "t1", "t2"]
    again = count_requests(proxy, lambda: read_ids(place))
    assert again.keys() == {"LIST"}
    append_elsewhere(place, 3)
    after = count_requests(proxy, lambda: read_ids(place))
    assert read_ids(place) == ["t0", "t1", "t2", "t3"]
    assert after["GET"] <= 3, "the commit, and the file whose name it holds"


def test_requests_of_an_append_do_not_grow_with_the_commits(proxy: Proxy, place: str) -> None:
    append_trial(place, 0)
    early = count_requests(proxy, lambda: append_trial(place, 1))
    for number in range(2, 15):
        append_trial(place, number)
    late = count_requests(proxy, lambda: append_trial(place, 15))
    assert late.total() <= early.total()


def test_a_name_is_refused_that_another_process_has_used(proxy: Proxy, place: str) -> None:
    append_trial(place, 1)
    with hold_table(place) as table:
        version = table.version()
    append_elsewhere(place, 2)
    assert not delta_files.append_rows(place, arrow_rows([trial(1)], TRIALS), "trials/1")
    append_trial(place, 3)
    with hold_table(place) as table:
        assert table.version() == version + 2
    assert read_ids(place) == ["t1", "t2", "t3"]


def test_a_table_that_somebody_removed_and_made_again_is_opened_anew(proxy: Proxy, place: str) -> None:
    for number in range(3):
        append_trial(place, number)  # this process has seen version 0, and made the others itself
    remove_objects(place)
    create_object_table(place, TRIALS)
    for number in range(10, 16):
        append_elsewhere(place, number)
    append_trial(place, 0)
    assert read_ids(place) == ["t0", *(f"t{number}" for number in range(10, 16))]


def test_a_folder_stays_open_until_somebody_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    count = lambda *asked: opened.append(asked) or open_table(*asked)  # noqa: E731
    monkeypatch.setattr(delta_tables, "open_table", count)
    place = str(tmp_path / "trials")
    for first in (0, 5):  # the second table has as many commits when it is first looked at
        create_local_table(Path(place), TRIALS)
        for number in range(first, first + 4):
            append_elsewhere(place, number)
        before = read_dataset(place)
        assert read_dataset(place) is before and before.count_rows() == 4
        append_trial(place, first + 4)
        assert read_ids(place) == [f"t{number}" for number in range(first, first + 5)]
        shutil.rmtree(place)
    assert len(opened) == 2


def test_after_an_error_in_a_block_the_table_is_opened_anew(proxy: Proxy, place: str) -> None:
    append_trial(place, 0)
    with pytest.raises(ValueError, match="of the block"), hold_table(place) as first:
        raise ValueError("of the block")
    with hold_table(place) as second, hold_table(place) as inner:
        assert second is not first and inner is not second, "a look within a block leaves its version"
    assert read_ids(place) == ["t0"]


def test_threads_lose_and_double_nothing(proxy: Proxy, place: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(append_trial, place), [*range(8), *range(8)]))
        answers = list(pool.map(lambda _: read_ids(place), range(4)))
    assert answers == [[f"t{number}" for number in range(8)]] * 4


def test_whether_a_table_exists_is_one_request(proxy: Proxy, place: str) -> None:
    for name, exists in ((place, True), (f"{place}-of-nobody", False)):
        requests = count_requests(proxy, lambda name=name: has_commit(name))
        assert has_commit(name) is exists and requests == Counter(LIST=1)


def test_files_that_were_used_longest_ago_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_tables, "KEPT_BYTES", 10)
    monkeypatch.setattr(delta_tables, "_contents", type(delta_tables._contents)())
    for name in "abc":
        delta_tables._open_file(lambda _: BytesIO(b"four"), {name: 4}, "table", name)
    assert list(delta_tables._contents) == [("table", "b"), ("table", "c")]


def test_a_name_before_the_last_checkpoint_is_known(
    proxy: Proxy, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_files, "COMMITS_A_CHECKPOINT", 3)
    for number in range(5):
        append_trial(place, number)
    assert sum("checkpoint" in name for name in list_objects(place)) == 2
    append_names._known.clear()
    requests = count_requests(proxy, lambda: append_trial(place, 0))
    assert requests["PUT"] == 0 and requests["GET"] < 10
    append_trial(place, 5)
    assert read_ids(place) == [f"t{number}" for number in range(6)]
