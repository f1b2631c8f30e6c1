"""Secrets of a local cluster, in files that only their owner can read: the generated secret of the
services, and the access keys of the gateway's clients, which the operator edits."""

import os
from pathlib import Path

from rockoon.net.access import AccessKey, new_secret, read_secret
from rockoon_core.signature import CLUSTER_KEY_ID

FILE = "cluster-secret"
CLIENT_SECRETS = "client-secrets"
CLIENT_SECRETS_HEAD = "# Access keys of the gateway's clients, a line each: NAME SECRET\n"


def secret_file(directory: Path) -> Path:
    """Return the path of the cluster secret."""
    return directory / "access" / FILE


def cluster_key(directory: Path) -> AccessKey:
    """Return the services' access key.

    Args:
        directory: directory of the cluster; a missing secret is generated.

    Raises:
        InvalidArgument: the file contains no secret.
        OSError: the file can be neither read nor created.
    """
    path = secret_file(directory)
    _written(path, new_secret() + "\n")
    return AccessKey(CLUSTER_KEY_ID, read_secret(path))


def client_secrets(directory: Path) -> Path:
    """Return the file for the gateway's setting `client_secrets`; create it if missing.

    Raises:
        OSError: the file cannot be created.
    """
    path = directory / "access" / CLIENT_SECRETS
    _written(path, CLIENT_SECRETS_HEAD)
    return path


def _written(path: Path, text: str) -> None:
    """Create a file unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".new")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        partial.replace(path)
