"""Access to object storage: settings, clients, errors in words.

Arrow, obstore and `deltalake` each look for credentials, address and region in another way. So they are
read once, here: from the environment, the role of a container (for which the libraries ask), a profile in
AWS's own files, or Hadoop's configuration; else the libraries ask the machine for its role.
`conf/spark/s3.conf` has this order for Java. The libraries get the keys, which stand in no table, log or
message; messages name only the keys' source.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pyarrow import fs

from recbench_spark.core.transfer_sizes import PART_BYTES, PARTS_AT_ONCE
from recbench_spark.errors import StoreError
from recbench_spark.storage import hdfs, uris
from recbench_spark.storage.drivers import Driver, FolderTree, LocalFolders, has_word, squeeze
from recbench_spark.storage.hdfs import explain_hdfs
from recbench_spark.storage.makers import cache_in_process
from recbench_spark.storage.publish import local_path

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECT_SECONDS = 5
REQUEST_SECONDS = 30
RETRY_SECONDS = 45
"""Longest time for all attempts at one request: a storage error ends within a minute."""

DEFAULT_REGION = "us-east-1"

ROLE_VARIABLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables by which a container learns its role."""

PROFILE_KEYS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}


class StorageAccess(NamedTuple):
    """Settings to reach one storage, with their source.

    Attributes:
        options: settings for `deltalake` and obstore, with secrets; empty: both read the environment.
        source: the credentials' source, without them; empty: none.
    """

    options: dict[str, str]
    source: str

    @property
    def address(self) -> str:
        """The storage's address, for messages."""
        return self.options.get("AWS_ENDPOINT_URL", "") or "the default address of the storage"

    def describe_credentials(self) -> str:
        """Describe in words where the credentials come from."""
        if self.source:
            return f"credentials were found in {self.source}"
        return "no credentials were found: none in the environment, in a profile, or as a role"


def read_access(place: str) -> StorageAccess:
    """Read the settings for a storage's URI."""
    if uris.read_scheme(place) != "s3":
        return StorageAccess({}, "the environment" if uris.is_object_storage(place) else "")
    profile, profile_source = _read_profile()
    options, source = _find_credentials(profile, profile_source)
    environment = {**_adopted, **os.environ}
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or profile.get("region")
    options["AWS_REGION"] = region or DEFAULT_REGION
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    endpoint = endpoint or profile.get("endpoint_url")
    if endpoint:
        options |= {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": str(endpoint.startswith("http:")).lower(),
        }
    return StorageAccess(options, source)


HADOOP_ADDRESS = {"fs.s3a.endpoint": "AWS_ENDPOINT_URL", "fs.s3a.endpoint.region": "AWS_REGION"}
"""Hadoop S3A's settings for address and region, and the variables with the same meaning."""

HADOOP_KEYS = {
    "fs.s3a.access.key": "AWS_ACCESS_KEY_ID",
    "fs.s3a.secret.key": "AWS_SECRET_ACCESS_KEY",
    "fs.s3a.session.token": "AWS_SESSION_TOKEN",
    **HADOOP_ADDRESS,
}
"""Hadoop S3A's settings, and the variables with the same meaning."""

_adopted: dict[str, str] = {}
"""Variables read from Hadoop's configuration by `adopt_hadoop`; the environment's own come first."""


def adopt_hadoop(place: str, read_setting: Callable[[str], str | None]) -> None:
    """Take keys and address from Hadoop's configuration.

    Only a process without other keys does so. A later call takes keys renewed there.

    Args:
        place: URI of a storage.
        read_setting: returns the value of a setting of Hadoop; None: it is not set.
    """
    if uris.read_scheme(place) != "s3" or (read_access(place).source and not _adopted):
        return
    values = {name: read_setting(key) for key, name in HADOOP_KEYS.items()}
    settings = {name: value for name, value in values.items() if value}
    if {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= settings.keys():
        endpoint = settings.get("AWS_ENDPOINT_URL")
        if endpoint and "://" not in endpoint:  # S3A takes a host alone for https
            settings["AWS_ENDPOINT_URL"] = f"https://{endpoint}"
        _adopted.update(settings)  # other threads read it at any moment, so nothing may be missing
        for name in _adopted.keys() - settings.keys():  # the token of earlier keys must go
            _adopted.pop(name, None)


def renew_variables(environment: dict[str, str], options: Mapping[str, str]) -> None:
    """Renew the variables by which processes reach a storage.

    Keys no longer in use are removed.

    Args:
        environment: variables; keys of an earlier call are among them.
        options: `StorageAccess.options`; empty for storage whose libraries read the environment.
    """
    if options:
        environment.update(options)
        for name in PROFILE_KEYS.values():
            if name not in options:
                environment.pop(name, None)


def may_have_credentials(place: str) -> bool:
    """Check whether keys or a machine's role may exist."""
    disabled = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    return bool(read_access(place).source) or not disabled


def _find_credentials(profile: dict[str, str], profile_source: str) -> tuple[dict[str, str], str]:
    """Return keys and source; libraries find a role's keys."""
    environment = os.environ
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        names = [name for name in PROFILE_KEYS.values() if environment.get(name)]
        return {name: environment[name] for name in names}, "the environment (AWS_ACCESS_KEY_ID)"
    role = next((name for name in ROLE_VARIABLES if environment.get(name)), None)
    if role:
        return {}, f"the role of this container ({role})"
    if {"aws_access_key_id", "aws_secret_access_key"} <= profile.keys():
        keys = {name: profile[key] for key, name in PROFILE_KEYS.items() if key in profile}
        return keys, profile_source
    if _adopted:
        names = [name for name in PROFILE_KEYS.values() if name in _adopted]
        return {name: _adopted[name] for name in names}, "Hadoop's configuration (fs.s3a.access.key)"
    return {}, ""


def _read_profile() -> tuple[dict[str, str], str]:
    """Return the user's AWS profile, and its name and file."""
    name = os.environ.get("AWS_PROFILE") or "default"
    home = Path.home() / ".aws"
    keys_file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    config_file = Path(os.environ.get("AWS_CONFIG_FILE") or home / "config")
    section = name if name == "default" else f"profile {name}"
    settings = {**_read_section(config_file, section), **_read_section(keys_file, name)}
    return settings, f"profile {name} of {keys_file}"


def _read_section(file: Path, section: str) -> dict[str, str]:
    """Return a section of a settings file; empty: none."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, OSError) as error:
        line = str(error).splitlines()[0]
        raise StoreError(f"{file} cannot be read: {line}", "it holds the profiles of AWS") from None
    return dict(parser[section]) if parser.has_section(section) else {}


# ------------------------------------------------------------------------------- the three libraries

T = TypeVar("T")
R = TypeVar("R")

Settings = tuple[tuple[str, str], ...]
"""Settings to reach a storage, as a cache's key. A forked process opens its own clients."""


def delta_options(place: str | Path) -> dict[str, str] | None:
    """Return the settings by which `deltalake` opens a table.

    None: the table is in a folder of this machine.
    """
    if not uris.is_object_storage(place):
        return None
    return find_driver(place).delta_options(str(place))


def _bucket_options(place: str) -> dict[str, str]:
    limits = {
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{REQUEST_SECONDS}s",
        "retry_timeout": f"{RETRY_SECONDS}s",
    }
    return {**read_access(place).options, **limits}


def open_filesystem(place: str) -> tuple[fs.FileSystem, str]:
    """Open a path's or URI's file system by Arrow.

    Returns:
        The file system, and the path in it.
    """
    return find_driver(place).open_arrow(uris.arrow_uri(place))


@cache_in_process(8)
def _open_s3(settings: Settings) -> fs.FileSystem:
    """Open S3 by Arrow; a process reuses the connections."""
    options = dict(settings)
    endpoint = urlsplit(options.get("AWS_ENDPOINT_URL", ""))
    return fs.S3FileSystem(
        access_key=options.get("AWS_ACCESS_KEY_ID"),
        secret_key=options.get("AWS_SECRET_ACCESS_KEY"),
        session_token=options.get("AWS_SESSION_TOKEN"),
        region=options["AWS_REGION"],
        scheme=endpoint.scheme or None,
        endpoint_override=endpoint.netloc or None,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        allow_delayed_open=True,  # a small file is one request, not the three of an upload in parts
    )


def open_path(place: str) -> str:
    """Return a file's name within its file system, for Arrow."""
    return open_filesystem(place)[1]


def map_together(root: str, function: Callable[[T], R], values: Iterable[T]) -> list[R]:
    """Return a function's results, side by side for object storage.

    Calls wait there.
    """
    if not uris.is_object_storage(root):
        return [function(value) for value in values]
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(function, values))


def open_bucket(root: str, *, retry_seconds: float = RETRY_SECONDS) -> Any:
    """Open a bucket by its driver.

    Args:
        root: URI of the bucket (`uris.split_bucket`).
        retry_seconds: longest time for all attempts at one request.
    """
    return find_driver(root).open_bucket(root, retry_seconds)


def _open_obstore(root: str, retry_seconds: float) -> Any:
    settings = tuple(sorted(read_access(root).options.items()))
    return _open_bucket(root, retry_seconds, settings)


@cache_in_process(16)
def _open_bucket(root: str, retry_seconds: float, settings: Settings) -> ObjectStore:
    """Open a bucket, once a process for equal settings."""
    from obstore.store import from_url  # noqa: PLC0415

    limits: Any = {"connect_timeout": f"{CONNECT_SECONDS}s", "timeout": f"{REQUEST_SECONDS}s"}
    options = {key.lower(): value for key, value in settings}
    limits["allow_http"] = options.pop("aws_allow_http", "false") == "true"
    retries: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=retry_seconds)}
    config: Any = options
    bucket: ObjectStore = from_url(root, config=config, client_options=limits, retry_config=retries)
    return bucket


# ---------------------------------------- errors in words


HINTS = {
    "s3": "AWS_ENDPOINT_URL names the address, AWS_ACCESS_KEY_ID or AWS_PROFILE the credentials",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS names the file of a key",
}
HINT_AZURE = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY are the account and its key"


def storage_error(place: str, text: str) -> StoreError:
    """Return the error for a place, from a library's text.

    The place is in an object storage.
    """
    return find_driver(place).explain(place, text)


def _bucket_error(place: str, text: str) -> StoreError:
    access, bucket = read_access(place), uris.split_bucket(place).root
    where, hint = f"bucket {bucket} at {access.address}", HINTS.get(uris.read_scheme(place), HINT_AZURE)
    said = squeeze(text.partition("Debug source")[0])
    if has_word(said, ("nosuchbucket", "bucket does not exist")):
        return StoreError(f"there is no {where}", f"make the bucket, or correct its name; {hint}")
    if not access.source and has_word(said, NO_CREDENTIALS):
        return StoreError(f"cannot open {where}: {access.describe_credentials()}", hint)
    if has_word(said, EXPIRED):
        message = f"the keys for {where} have expired: {access.describe_credentials()}"
        return StoreError(
            message, "renew them there, and run again: a night goes on from what was published"
        )
    if has_word(said, REFUSED):
        return StoreError(f"{where} refuses this user: {access.describe_credentials()}", hint)
    if has_word(said, SILENT):
        return StoreError(f"{where} does not answer: {_shorten(text)}", hint)
    return StoreError(f"{where}: {_shorten(text)}", hint)


def _hdfs_error(place: str, text: str) -> StoreError:
    root, said = uris.split_bucket(place).root, squeeze(text)
    if has_word(said, HDFS_REFUSED):
        hint = "HADOOP_USER_NAME names the user; where there is Kerberos, kinit gets a ticket"
        return StoreError(f"{root} refuses this user: {_shorten(text)}", hint)
    problem = "does not answer" if has_word(said, HDFS_SILENT) else "has an error"
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


BUCKETS = Driver(_open_obstore, fs.FileSystem.from_uri, _bucket_options, _bucket_error)
DRIVERS = {
    "s3": BUCKETS._replace(
        open_arrow=lambda uri: (
            _open_s3(tuple(sorted(read_access(uri).options.items()))),
            uri.removeprefix("s3://"),
        )
    ),
    uris.HDFS: Driver(
        hdfs.open_name_node,
        lambda uri: (
            hdfs.open_arrow(uris.split_bucket(uri).root, RETRY_SECONDS),
            f"/{uris.split_bucket(uri).key}",
        ),
        lambda _: hdfs.prepare_client(RETRY_SECONDS),
        _hdfs_error,
    ),
}
"""Drivers by scheme. Buckets in `OBJECT_SCHEMES` need none here: obstore and Arrow open them."""


def find_driver(place: str | Path) -> Driver:
    """Return the driver of a place."""
    return DRIVERS.get(uris.read_scheme(place), BUCKETS)


@contextmanager
def explain_storage(place: str) -> Iterator[None]:
    """Turn an object storage's errors into a StoreError.

    The error names address, bucket and the credentials' source.
    """
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        with explain_hdfs():
            yield
    except (BaseError, OSError) as error:
        raise storage_error(place, str(error)) from None


@contextmanager
def open_store(place: str, retry_seconds: float = RETRY_SECONDS) -> Iterator[tuple[Any, str]]:
    """Open a place's driver for a block.

    Raises:
        StoreError: an object storage does not answer, or refuses, here or in the block.
    """
    if not uris.is_remote(place):
        yield LocalFolders(), str(local_path(place))
        return
    bucket = uris.split_bucket(place)
    with explain_storage(place):
        yield open_bucket(bucket.root, retry_seconds=retry_seconds), bucket.key


class ObjectOutput:
    """Stream to a new object, which appears only when complete.

    obstore or the client of HDFS writes it. Arrow's streams publish what they have when they are closed,
    also after an error. This one holds PARTS_AT_ONCE parts. Only the storage's errors become a StoreError
    here.
    """

    closed = False

    def __init__(self, place: str) -> None:
        from obstore import open_writer  # noqa: PLC0415

        self.place = place
        with open_store(place) as (store, key):
            self.writer: Any = (
                store.open_writer(key)
                if isinstance(store, FolderTree)
                else open_writer(store, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            )

    def write(self, content: Any) -> int:
        """Write bytes, and return their number."""
        with explain_storage(self.place):
            count: int = self.writer.write(memoryview(content).cast("B"))
        return count


@contextmanager
def explain_arrow(place: str) -> Iterator[None]:
    """Turn Arrow's errors on object storage into a StoreError.

    Errors for missing or damaged files stay.
    """
    try:
        with explain_hdfs():
            yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if not uris.is_object_storage(place) or UNPACKING.search(str(error)):
            raise
        raise storage_error(place, str(error)) from None


UNPACKING = re.compile("(inflate|decompress) failed|Truncated compressed")
"""Errors of compressed text, wherever it is."""


def _shorten(text: str) -> str:
    """Return the server's answer, or an error's first line."""
    answer = re.search(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text, re.DOTALL)
    if answer:
        return f"{answer[1]}: {answer[2]}"
    return text.strip().splitlines()[0][:200] if text.strip() else "an error without words"
