"""File systems of locations outside of this machine, and the settings of S3.

A location is a local path or a URI. The settings of S3 are parameters of the URI, so that a
location is one text, which tasks receive:

    s3://bucket/store?region=eu-west-1&endpoint_override=http://127.0.0.1:9000

The names are those of Arrow, and `access_key`, `secret_key`, `session_token` and `timeout_seconds`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import pyarrow as pa
import pyarrow.fs as pafs

from rockoon_core.valid_text import redacted

S3_OPTIONS: Mapping[str, str] = {
    "s3Endpoint": "endpoint_override",
    "s3Region": "region",
    "s3AccessKey": "access_key",
    "s3SecretKey": "secret_key",
    "s3SessionToken": "session_token",
    "s3Timeout": "timeout_seconds",
}
"""Parameter of a URI for each option of Spark."""

_S3 = re.compile(r"s3a?://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_PARAMETERS = {*S3_OPTIONS.values(), "scheme"}
_TIMEOUT_SECONDS = 20.0
# With the pauses between attempts, a store that does not answer is reported after a few seconds
# and the timeouts. The default of the library is ten attempts.
_ATTEMPTS = 3
# Places of one process whose connections are kept.
_LOCATIONS_MAX = 64

_SECRET_OPTIONS = "options s3AccessKey, s3SecretKey and s3SessionToken"
_CAUSES: Mapping[str, str] = {
    r"curlCode: 28|timed? ?out|REQUEST_TIMEOUT": "options s3Endpoint and s3Timeout",
    r"NETWORK_CONNECTION|curlCode|resolve host": "option s3Endpoint",
    r"NO_SUCH_BUCKET": "option path",
    r"PermanentRedirect|AuthorizationHeaderMalformed|HTTP status 30[17]|region": "option s3Region",
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|INVALID_CLIENT_TOKEN|TOKEN|403|credentials": (
        _SECRET_OPTIONS
    ),
}
"""Options to check, by a pattern of the error's text; the first match counts."""


class StoreReadError(Exception):
    """A directory is not a store, or the store cannot be read."""


def is_s3(location: str) -> bool:
    """True if a location is in S3, or in a store with the same protocol."""
    return _S3.match(location) is not None


def child(location: str, name: str) -> str:
    """Return the location of a file or directory in a directory."""
    if "://" not in location:
        return f"{location.rstrip('/')}/{name}"
    root, mark, parameters = location.partition("?")
    return f"{root.rstrip('/')}/{name}{mark}{parameters}"


def with_s3_settings(location: str, options: Mapping[str, str]) -> str:
    """Add options of S3_OPTIONS to a location as parameters.

    Raises:
        ValueError: the location is not in S3, or an option is invalid. The text has no secret.
    """
    if not is_s3(location):
        if options:
            raise ValueError(
                f"option {min(options)} cannot be used with {redacted(location)}: it is for s3://"
                " and s3a://"
            )
        return location
    root, _, query = location.partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if not value:
            raise ValueError(f"option {name}: it is empty")
        parameters[S3_OPTIONS[name]] = value
    found = f"{root}?{urlencode(parameters)}" if parameters else root
    try:
        _s3_arguments(found)
    except StoreReadError as error:
        raise ValueError(str(error)) from None
    return found


def file_system(location: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a location that is a URI, and the path in it.

    Raises:
        StoreReadError: no file system of Arrow has such locations. The text has no secret.
    """
    if is_s3(location):
        arguments, path = _s3_arguments(location)
        return _s3(tuple(sorted(arguments.items())), path.partition("/")[0]), path
    try:
        files, path = pafs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        # `from None`, because the cause contains the URI with its secret.
        raise StoreReadError(
            f"{redacted(location)} is in no file system that can be read from here (known are"
            f" paths, file, hdfs, viewfs, s3, s3a, gs, abfs): {redacted(error)}"
        ) from None
    return files, path


@contextmanager
def store_errors(location: str) -> Iterator[None]:
    """Convert errors of a store in S3 to StoreReadError with the options to check.

    FileNotFoundError is not converted: a missing file can be the result of retention.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if not is_s3(location):
            raise
        text = str(error)
        checks = (options for cause, options in _CAUSES.items() if re.search(cause, text, re.I))
        hint = next(checks, "the options for S3")
        raise StoreReadError(
            f"{redacted(location)} cannot be read: check {hint}: {redacted(text)}"
        ) from None


def _s3_arguments(location: str) -> tuple[dict[str, Any], str]:
    """Return the arguments of Arrow's file system for a location in S3, and the path with bucket.

    Raises:
        StoreReadError: the location is invalid.
    """
    found = _S3.match(location)
    assert found is not None
    root, _, query = found["rest"].partition("?")
    user, path = _user_and_path(root)
    given = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(given.keys() - _PARAMETERS):
        raise _invalid(location, f"parameter {unknown[0]!r} is unknown")
    path = path.strip("/")
    if not path:
        raise _invalid(location, "option path names no bucket: expected s3://bucket/directory")
    access_key, _, secret_key = (unquote(each) for each in user.partition(":"))
    arguments: dict[str, Any] = {
        "access_key": given.get("access_key", access_key) or None,
        "secret_key": given.get("secret_key", secret_key) or None,
        "session_token": given.get("session_token"),
        "region": given.get("region"),
        "request_timeout": _timeout(location, given.get("timeout_seconds")),
    }
    arguments["connect_timeout"] = arguments["request_timeout"]
    if bool(arguments["access_key"]) != bool(arguments["secret_key"]):
        raise _invalid(location, "set both of the options s3AccessKey and s3SecretKey")
    scheme, mark, address = given.get("endpoint_override", "").rpartition("://")
    if mark and scheme.lower() not in ("http", "https"):
        raise _invalid(location, f"option s3Endpoint has scheme {scheme!r}, expected http or https")
    address = address.rstrip("/")
    if address:
        if not re.fullmatch(r"[\w.-]+(:[0-9]{1,5})?|\[[0-9a-fA-F:]+\](:[0-9]{1,5})?", address):
            raise _invalid(location, "option s3Endpoint is not of the form http://host:port")
        arguments["endpoint_override"] = address
        # An endpoint of one's own rarely has regions.
        arguments["region"] = arguments["region"] or "us-east-1"
    arguments["scheme"] = (scheme or given.get("scheme", "https")).lower()
    return {name: value for name, value in arguments.items() if value is not None}, path


def _user_and_path(root: str) -> tuple[str, str]:
    """Return the keys before the bucket, empty if there are none, and the path with bucket.

    A secret key may have slashes, and a directory may have an @. A bucket has no colon.
    """
    user, mark, path = root.partition("@")
    is_user = mark and ("/" not in user or ":" in user.partition("/")[0])
    return (user, path) if is_user else ("", root)


def _timeout(location: str, text: str | None) -> float:
    if text is None:
        return _TIMEOUT_SECONDS
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not 0 < float(text) <= 3600:
        raise _invalid(
            location, f"option s3Timeout is {text!r}, expected seconds, more than 0, at most 3600"
        )
    return float(text)


def _invalid(location: str, fault: str) -> StoreReadError:
    return StoreReadError(f"{redacted(location)}: {fault}")


@lru_cache(_LOCATIONS_MAX)
def _s3(arguments: tuple[tuple[str, Any], ...], bucket: str) -> pafs.S3FileSystem:
    chosen = dict(arguments)
    with store_errors(f"s3://{bucket}"):
        if "region" not in chosen:
            chosen["region"] = pafs.resolve_s3_region(bucket)
        return pafs.S3FileSystem(
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS), **chosen
        )
