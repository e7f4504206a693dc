"""Bytes on a real S3 server: conditional writes, appends of two processes at once, errors in words."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.errors import StoreError
from recbench_spark.schemas import REJECTS, TRIALS, arrow_rows
from recbench_spark.sources.digests import read_object_stamps
from recbench_spark.storage import delta_files, host_files, object_access, objects, task_files, uris
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import list_files, open_table, read_dataset
from recbench_spark.storage.made_folders import TASK_FILES, publish_parts
from recbench_spark.storage.object_access import storage_error
from recbench_spark.storage.objects import put_if_absent, read_bytes, write_bytes
from recbench_spark.storage.table_folders import create_object_table, has_commit
from tests.conftest import ROOT
from tests.storage.test_missing_rows import trial

AT_ONCE = 32


def put_at_once(place: str, count: int) -> list[bool]:
    """Put under one name from many threads, which start together."""
    barrier = threading.Barrier(count)

    def put(number: int) -> bool:
        barrier.wait()
        return put_if_absent(place, str(number).encode())

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(put, range(count)))


def check_one_winner(place: str) -> None:
    for n in range(5):
        name = f"{place}/log/{n:020}.json"
        wins = put_at_once(name, AT_ONCE)
        assert sum(wins) == 1
        assert read_bytes(name) == str(wins.index(True)).encode(), "a loser has written"


def test_of_32_conditional_puts_on_s3_one_wins(bucket: str) -> None:
    check_one_winner(bucket)


def test_of_32_conditional_puts_on_a_folder_one_wins(tmp_path: Path) -> None:
    check_one_winner(str(tmp_path))


def test_bytes_are_written_read_replaced_listed_and_removed(bucket: str) -> None:
    assert read_bytes(f"{bucket}/none") is None
    for content in (b"first", b"second", b""):
        write_bytes(f"{bucket}/a b/é.json", content)
        assert read_bytes(f"{bucket}/a b/é.json") == content
    write_bytes(f"{bucket}/a b/c/d.json", b"123")
    assert sorted(objects.list_objects(f"{bucket}/a b")) == ["c/d.json", "é.json"]
    names = [f"{bucket}/a b/c/d.json", f"{bucket}/a b/none"]
    assert objects.measure_files(names) == [3, None]
    objects.remove_object(names[0])
    assert objects.measure_files(names) == [None, None]


def test_hadoops_name_of_a_place_is_the_same_place(bucket: str) -> None:
    write_bytes(f"{bucket}/x", b"1")
    hadoop = bucket.replace("s3://", "s3a://")
    assert read_bytes(f"{hadoop}/x") == b"1"
    assert not put_if_absent(f"{hadoop}/x", b"2")


ODD_FOR_TABLES = ("a%20b", "%2F", "#h", "q?x", "[x]", "a|b", "^", "\\")
"""Parts of a URI that `deltalake` takes for other ones, or does not take."""


def test_tables_have_the_names_that_all_libraries_take_alike(bucket: str) -> None:
    rows = arrow_rows([{"split_id": "s", "file": "a", "line": "1", "reason": "x"}], REJECTS)
    for name in ("a b", "50% off", "é+=*~:@&'"):
        ArrowStore(f"{bucket}/{name}").append(rows, REJECTS)
        assert ArrowStore(f"{bucket}/{name}").read_rows(REJECTS) == rows
    before = list(objects.list_objects(bucket))
    for name in ODD_FOR_TABLES:
        for use in (ArrowStore, open_table):
            with pytest.raises(StoreError, match="which tables of Delta cannot have there") as error:
                use(f"{bucket}/{name}")
            assert "choose a name" in (error.value.hint or "")
    assert list(objects.list_objects(bucket)) == before, "`a%20b` is the folder `a b` to deltalake"


@pytest.mark.parametrize("name", ["/w", "a//b", "a/../b", "./b"])
def test_a_part_of_a_uri_that_names_nothing_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match=r"a part that is empty, \. or \.\."):
        uris.split_bucket(f"s3a://bucket/{name}")


@pytest.mark.parametrize("root", ["s3://", "s3:///w", "s3a://"])
def test_a_warehouse_without_a_bucket_is_refused_and_makes_no_folder(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="names no bucket"):
        ArrowStore(root)
    assert not list(tmp_path.iterdir()), "s3: is no folder"


def test_a_uri_of_this_machine_is_a_path() -> None:
    assert uris.absolute_place("file:///data/x y") == "/data/x y"
    assert uris.link_place("file:///data/x") == "file:///data/x"
    assert uris.link_place("x") == Path("x").absolute().as_uri()


def test_a_full_disk_is_no_error_of_the_storage(bucket: str) -> None:
    write_bytes(f"{bucket}/x", b"1")
    with pytest.raises(OSError, match="No space left on device"):
        host_files.copy_object_to_file(f"{bucket}/x", Path("/dev/full"))


# ------------------------------------------------------------------------------------ commits


def test_a_table_is_created_once_and_has_rows_of_tasks_and_of_the_driver(bucket: str) -> None:
    make_trials(bucket)


def make_trials(root: str) -> str:
    """Create a table by four threads, append two rows once, and check both; return its place."""
    place = f"{root}/warehouse/trials"
    assert not has_commit(place)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: create_object_table(place, TRIALS), range(4)))
    assert has_commit(place)
    assert open_table(place).protocol().min_writer_version == delta_files.CHECKED_VERSION
    rows = arrow_rows([trial(1), trial(2)], TRIALS)
    assert delta_files.append_rows(place, rows, "one")
    assert not delta_files.append_rows(place, rows, "one"), "an append of this name exists"
    assert read_dataset(place).to_table(columns=["trial_id"]).to_pydict() == {"trial_id": ["t1", "t2"]}
    with pytest.raises(StoreError, match=r"cannot write .*trials"):
        delta_files.append_rows(place, arrow_rows([trial(3, "unknown")], TRIALS), "bad")
    return place


def commit_files_once(root: str) -> tuple[str, delta_files.File]:
    """Commit a file of tasks twice under one name; it must be there once. Return table and file."""
    place = f"{root}/warehouse/files"
    create_object_table(place, REJECTS)
    rows = pa.table({"file": ["a", "b"], "line": [None, "2"], "reason": ["short", "long"]})
    file = delta_files.write_file(rows, place, {"split_id": "a b%c"}, rows.column_names)
    delta_files.require_visible(place, [file])
    assert delta_files.commit(place, [file], {}, "once")
    assert not delta_files.commit(place, [file], {}, "once")
    assert list_files(place, {"split_id": "a b%c"}) == [f"{place}/{file.path}"]
    return place, file


def test_files_of_tasks_are_committed_once_under_their_name(bucket: str) -> None:
    place, file = commit_files_once(bucket)
    lost = file._replace(path=f"{file.path}.lost")
    with pytest.raises(StoreError, match="the driver does not see it"):
        delta_files.require_visible(place, [lost])


APPENDER = """
import sys, time
from functools import partial
from recbench_spark import cli
from recbench_spark.schemas import TRIALS, arrow_rows
from recbench_spark.storage import delta_files, objects, retries
from tests.storage.test_missing_rows import trial
from tests.waiting import wait_until
def main(args):
    objects.write_bytes(f"{args.place}/ready/{args.number}", b"")
    wait_until(lambda: len(list(objects.list_objects(f"{args.place}/ready"))) == 2)
    for n in range(12):
        for name, rows in (("own", [trial(1000 * int(args.number) + n)]), ("shared", [trial(-n - 1)])):
            once = f"{name}-{args.number if name == 'own' else ''}-{n}"
            table = f"{args.place}/trials"
            append = partial(delta_files.append_rows, table, arrow_rows(rows, TRIALS), once)
            retries.retry_while(retries.is_delta_conflict, "write", append, 0.05)
    return 0
parser = cli.Parser("A driver.")
for name in ("place", "number"):
    parser.add_argument(name)
cli.run(main, parser)
"""


def test_two_drivers_append_at_once_and_nothing_is_lost_or_doubled(bucket: str) -> None:
    append_from_two_drivers(bucket)


def append_from_two_drivers(root: str) -> None:
    """Append from two processes at once, and check that each row is there once."""
    create_object_table(f"{root}/trials", TRIALS)
    drivers = [
        subprocess.Popen([sys.executable, "-c", APPENDER, root, str(n)], stderr=subprocess.PIPE, text=True)
        for n in (1, 2)
    ]
    errors = [driver.communicate()[1] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], errors
    counts = Counter(read_dataset(f"{root}/trials").to_table()["trial_id"].to_pylist())
    own = [f"t{1000 * driver + n}" for driver in (1, 2) for n in range(12)]
    assert counts == dict.fromkeys([*own, *(f"t{-n - 1}" for n in range(12))], 1)


# ------------------------------------------------------------------------------------ files of tasks


def write_task(folder: str, tables: Iterator[pa.Table]) -> str:
    """Write the rows of a task as `write_rows` does; return the file."""
    (file,) = task_files._write_tables(tables, ["n"], folder, {})
    return f"{folder}/{file.path}"


def numbers(count: int) -> pa.Table:
    return pa.table({"n": list(range(count))})


def test_a_task_that_was_given_up_overwrites_no_file(bucket: str) -> None:
    winner = write_task(f"{bucket}/rows", iter([numbers(10), numbers(5)]))
    loser = write_task(f"{bucket}/rows", iter([numbers(10)]))  # its input was cut between two messages
    assert winner != loser
    assert objects.open_parquet(winner).metadata.num_rows == 15


def test_after_an_error_nothing_appears(bucket: str) -> None:
    def cut() -> Iterator[pa.Table]:
        yield numbers(10)
        raise EOFError("cut within a message")

    with pytest.raises(EOFError):
        write_task(f"{bucket}/rows", cut())
    for size in (10, 25 << 20):  # one request, and an upload in parts
        with pytest.raises(KeyError), objects.open_output(f"{bucket}/rows/{size}") as stream:
            stream.write(bytes(size))
            raise KeyError(size)
    assert list(objects.list_objects(bucket)) == []


def test_an_object_of_several_parts_is_read_as_it_was_written(bucket: str) -> None:
    content = np.random.default_rng(0).integers(0, 256, 25 << 20, dtype=np.uint8)
    with objects.open_output(f"{bucket}/large") as stream:
        stream.write(content[:7])
        stream.write(content[7:])
        assert stream.tell() == len(content)
    assert read_bytes(f"{bucket}/large") == content.tobytes()


def test_a_folder_that_is_read_whole_has_only_the_files_that_tasks_returned(bucket: str) -> None:
    folder = f"{bucket}/log"
    files = [write_task(f"{folder}/{TASK_FILES}", iter([numbers(n)])) for n in (1, 2)]
    write_task(f"{folder}/{TASK_FILES}", iter([numbers(1)]))
    publish_parts(files, folder)
    late = write_task(f"{folder}/{TASK_FILES}", iter([numbers(1)]))
    names = [f"{folder}/part-{n:05}.parquet" for n in (0, 1)]
    assert list(read_object_stamps(folder)) == names, "the log would hold rows twice"
    assert [objects.open_parquet(name).metadata.num_rows for name in names] == [1, 2]
    assert [f"{bucket}/{name}" for name in objects.list_objects(bucket)] == [late, *names]


# ------------------------------------------------------------------------------------ credentials


def test_hadoops_keys_are_used_where_the_environment_has_none(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_access, "_adopted", {})
    names = object_access.HADOOP_KEYS
    variables = {name: os.environ[name] for name in names.values() if name in os.environ}
    hadoop = {key: variables.get(name) for key, name in names.items()}
    object_access.adopt_hadoop(bucket, lambda key: "other")
    objects.require_storage(bucket)  # the environment comes first
    for name in variables:
        monkeypatch.delenv(name)
    object_access.adopt_hadoop(bucket, hadoop.get)
    objects.require_storage(bucket)
    write_bytes(f"{bucket}/x", b"1")
    assert object_access.read_access(bucket).source == "Hadoop's configuration (fs.s3a.access.key)"


def test_keys_that_were_renewed_in_hadoops_configuration_are_taken(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_access, "_adopted", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for keys in ("first", "second"):
        object_access.adopt_hadoop(bucket, lambda key, keys=keys: keys if "key" in key else None)
        assert object_access.read_access(bucket).options["AWS_SECRET_ACCESS_KEY"] == keys


def test_keys_of_a_profile_are_read_again_when_its_file_is_replaced(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    form = "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
    file.write_text(form.format(key, "old"))
    with pytest.raises(StoreError, match="refuses this user: credentials were found in profile default"):
        objects.require_storage(bucket)
    file.write_text(form.format(key, secret))
    objects.require_storage(bucket)
    write_bytes(f"{bucket}/x", b"1")


def test_the_token_of_earlier_keys_is_not_given_on(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(object_access, "_adopted", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    form = "[default]\naws_access_key_id = {0}\naws_secret_access_key = {0}\n"
    variables = {"PYTHONHASHSEED": "0"}
    for keys in (f"{form.format('short')}aws_session_token = t\n", form.format("fixed"), ""):
        file.write_text(keys)
        object_access.renew_variables(variables, object_access.read_access(bucket).options)
        assert ("AWS_SESSION_TOKEN" in variables) == ("token" in keys)
        assert ("AWS_ACCESS_KEY_ID" in variables) == bool(keys)
    assert variables["PYTHONHASHSEED"] == "0" and variables["AWS_REGION"]
    for token in ("t", None):
        settings = {"fs.s3a.access.key": "a", "fs.s3a.secret.key": "b", "fs.s3a.session.token": token}
        object_access.adopt_hadoop(bucket, settings.get)
        assert object_access.read_access(bucket).options.get("AWS_SESSION_TOKEN") == token


def list_java_sources() -> list[str]:
    """Return where Java looks for keys by conf/spark/s3.conf, in the words of `StorageAccess.source`."""
    words = {
        "EnvironmentVariable": "the environment", "WebIdentityTokenFile": "WEB_IDENTITY",
        "Container": "CONTAINER", "Profile": "profile",
        "TemporaryAWS": "Hadoop", "SimpleAWS": "Hadoop", "IAMInstance": "",
    }  # fmt: skip
    lines = (ROOT / "conf" / "spark" / "s3.conf").read_text(encoding="utf-8").splitlines()
    (listed,) = (line.split()[1] for line in lines if ".credentials.provider " in line)
    names = (name.rsplit(".", 1)[1].removesuffix("CredentialsProvider") for name in listed.split(","))
    return list(dict.fromkeys(words[name] for name in names))


def test_python_looks_for_keys_in_javas_order(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(object_access, "_adopted", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    add_sources = (
        lambda: None,
        lambda: object_access.adopt_hadoop(bucket, lambda key: "keys" if "key" in key else None),
        lambda: file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n"),
        lambda: monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "x"),
        lambda: monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "x"),
        lambda: [monkeypatch.setenv(f"AWS_{name}", "x") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")],
    )
    for add_source, word in zip(add_sources, reversed(list_java_sources()), strict=True):
        add_source()
        source = object_access.read_access(bucket).source
        assert word in source and bool(word) == bool(source)


# ------------------------------------------------------------------------------------ errors in words


def write_empty(place: str) -> None:
    write_bytes(place, b"")


def read_input(place: str) -> None:
    with objects.open_input(place) as file:
        file.read()


def measure(place: str) -> None:
    objects.measure_files([place])


def test_what_a_storage_refuses_is_said_in_words(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(f"{bucket}/x", b"1")
    objects.require_storage(f"{bucket}/warehouse")
    missing = "s3://no-such-bucket/warehouse"
    with pytest.raises(StoreError, match="there is no bucket s3://no-such-bucket at "):
        objects.require_storage(missing)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(
        StoreError, match=r"refuses this user: credentials were found in the environment"
    ) as error:
        objects.require_storage(bucket)
    assert "wrong" not in str(error.value)
    for use in (read_bytes, write_empty, read_input, objects.open_parquet, measure):
        with pytest.raises(StoreError, match=r"refuses this user: credentials were found in the environ"):
            use(f"{bucket}/x")
    with pytest.raises(StoreError, match="InvalidBucketName: The specified bucket is not valid"):
        objects.require_storage("s3://b1/warehouse")
    for place, variable in (("gs://b/x", "GOOGLE_"), ("abfss://c@a.dfs.core.windows.net/x", "AZURE_")):
        assert (storage_error(place, "timeout").hint or "").startswith(variable)
    expired = storage_error(bucket, "Client error with status 400: <Code>ExpiredToken</Code>")
    assert str(expired).startswith(f"the keys for bucket {bucket} at ") and "have expired" in str(expired)
