"""Opened object storage, whose errors are words: the address, the bucket, where credentials were found."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from recbench_spark.errors import StoreError
from recbench_spark.storage.hdfs import NameNode, explain_hdfs
from recbench_spark.storage.object_access import RETRY_SECONDS, open_bucket, read_access
from recbench_spark.storage.uris import is_hdfs, is_object_storage, read_scheme, split_bucket
from recbench_spark.transfer_sizes import PART_BYTES, PARTS_AT_ONCE

T = TypeVar("T")

HINTS = {
    "s3": "AWS_ENDPOINT_URL names the address, AWS_ACCESS_KEY_ID or AWS_PROFILE the credentials",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS names the file of a key",
}
HINT_AZURE = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY are the account and its key"


def storage_error(place: str, text: str) -> StoreError:
    """Return the error for a place of an object storage, by the text of a library's error."""
    return _hdfs_error(place, text) if is_hdfs(place) else _bucket_error(place, text)


def _bucket_error(place: str, text: str) -> StoreError:
    access, bucket = read_access(place), split_bucket(place).root
    where, hint = f"bucket {bucket} at {access.address}", HINTS.get(read_scheme(place), HINT_AZURE)
    said = _squeeze(text.partition("Debug source")[0])
    if _has_word(said, ("nosuchbucket", "bucket does not exist")):
        return StoreError(f"there is no {where}", f"make the bucket, or correct its name; {hint}")
    if not access.source and _has_word(said, NO_CREDENTIALS):
        return StoreError(f"cannot open {where}: {access.describe_credentials()}", hint)
    if _has_word(said, EXPIRED):
        message = f"the keys for {where} have expired: {access.describe_credentials()}"
        return StoreError(
            message, "renew them there, and run again: a night goes on from what was published"
        )
    if _has_word(said, REFUSED):
        return StoreError(f"{where} refuses this user: {access.describe_credentials()}", hint)
    if _has_word(said, SILENT):
        return StoreError(f"{where} does not answer: {_shorten(text)}", hint)
    return StoreError(f"{where}: {_shorten(text)}", hint)


def _hdfs_error(place: str, text: str) -> StoreError:
    root, said = split_bucket(place).root, _squeeze(text)
    if _has_word(said, HDFS_REFUSED):
        hint = "HADOOP_USER_NAME names the user; where there is Kerberos, kinit gets a ticket"
        return StoreError(f"{root} refuses this user: {_shorten(text)}", hint)
    problem = "does not answer" if _has_word(said, HDFS_SILENT) else "has an error"
    return StoreError(f"{root} {problem}: {_shorten(text)}", HINT_HDFS)


HINT_HDFS = (
    "write hdfs://HOST:PORT/FOLDER with host and port of the name node, or the name of a service that "
    "hdfs-site.xml below HADOOP_CONF_DIR has"
)
HDFS_REFUSED = ("AccessControlException", "permission denied", "SASL", "GSSAPI", "not allowed")
HDFS_SILENT = ("connect", "timed out", "timeout", "resolve", "dns", "lookup", "io error", "no route")

NO_CREDENTIALS = (
    *("missing accesskeyid", "missing secretaccesskey", "credential"),
    *("/latest/api", "metadata", "169.254", "imds"),
)
REFUSED = (
    *("accessdenied", "invalidaccesskeyid", "signaturedoesnotmatch", "forbidden"),
    *("unauthenticated", "permission", "status 403", "status: 403"),
)
EXPIRED = (
    "expiredtoken",
    "token has expired",
    "token is expired",
    "security token included in the request is expired",
)
SILENT = ("connect", "timed out", "timeout", "dns", "resolve", "network", "error sending request")


CUT = (
    "response body error",
    "error reading a body",
    "getting list response body",
    "message length reached",
)
"""Words of an error after an answer whose end is missing."""

CUT_ATTEMPTS = 5
"""Number of times that a request is made whose answers are cut."""


def is_cut_answer(error: Exception) -> bool:
    """Return whether the connection ended within the storage's answer.

    The libraries repeat a request without an answer, and go on with an object that is read; of a listing
    they do not ask for the rest.
    """
    return _has_word(_squeeze(str(error)), CUT)


def repeat_if_cut(action: Callable[[], T]) -> T:
    """Run an action that changes nothing, again where the storage's answer was cut; return its result."""
    for attempt in range(1, CUT_ATTEMPTS):
        try:
            return action()
        except Exception as error:
            if not is_cut_answer(error):
                raise
        time.sleep(0.1 * 2**attempt)
    return action()


@contextmanager
def explain_storage(place: str) -> Iterator[None]:
    """Turn errors of an object storage into a StoreError with address, bucket and source of credentials."""
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        with explain_hdfs():
            yield
    except (BaseError, OSError) as error:
        raise storage_error(place, str(error)) from None


@contextmanager
def open_store(place: str, retry_seconds: float = RETRY_SECONDS) -> Iterator[tuple[Any, str]]:
    """Open the bucket, or the HDFS, of a URI for a block, with the name of the place in it.

    Raises:
        StoreError: it does not answer, or refuses, here or in the block.
    """
    bucket = split_bucket(place)
    with explain_storage(place):
        yield open_bucket(bucket.root, retry_seconds=retry_seconds), bucket.key


class ObjectOutput:
    """ObjectOutput is a new object, written by obstore or the client of HDFS.

    Arrow's streams publish what they have when they are closed, also after an error. It holds
    PARTS_AT_ONCE parts. Only errors of the storage become a StoreError here.
    """

    closed = False

    def __init__(self, place: str) -> None:
        from obstore import open_writer  # noqa: PLC0415

        self.place = place
        with open_store(place) as (store, key):
            self.writer: Any = (
                store.open_writer(key)
                if isinstance(store, NameNode)
                else open_writer(store, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            )

    def write(self, content: Any) -> int:
        """Write bytes, and return their number."""
        with explain_storage(self.place):
            count: int = self.writer.write(memoryview(content).cast("B"))
        return count


@contextmanager
def explain_arrow(place: str) -> Iterator[None]:
    """Turn Arrow's errors on object storage into a StoreError, but for a file that does not exist."""
    try:
        with explain_hdfs():
            yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if not is_object_storage(place):
            raise
        raise storage_error(place, str(error)) from None


def _squeeze(text: str) -> str:
    """Return a text without case, blanks and underscores, since each library spells errors otherwise."""
    return re.sub("[ _]", "", text.lower())


def _has_word(said: str, words: Sequence[str]) -> bool:
    return any(_squeeze(word) in said for word in words)


def _shorten(text: str) -> str:
    """Return what the server says, or the first line of a library's error without its causes."""
    answer = re.search(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text, re.DOTALL)
    if answer:
        return f"{answer[1]}: {answer[2]}"
    return text.strip().splitlines()[0][:200] if text.strip() else "an error without words"
