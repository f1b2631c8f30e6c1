"""Secrets of a local cluster, in files that only their owner reads: the services' own, made once,
and those of the access keys that a gateway's clients use, which people write down there."""

import os
from pathlib import Path

from rockoon.net.access import AccessKey, new_secret, read_secret
from rockoon_core.signature import CLUSTER_KEY_ID

FILE = "cluster-secret"
CLIENT_SECRETS = "client-secrets"
CLIENT_SECRETS_HEAD = "# Access keys of the gateway's clients, a line each: NAME SECRET\n"


def secret_file(directory: Path) -> Path:
    """Where the secret of the cluster in a directory is."""
    return directory / "access" / FILE


def cluster_key(directory: Path) -> AccessKey:
    """The services' own access key.

    Args:
        directory: the cluster's; the secret is made when missing.

    Raises:
        InvalidArgument: the file there holds no secret.
        OSError: it can be neither read nor written.
    """
    path = secret_file(directory)
    _written(path, new_secret() + "\n")
    return AccessKey(CLUSTER_KEY_ID, read_secret(path))


def client_secrets(directory: Path) -> Path:
    """The file of the gateway's setting `client_secrets`, made when missing.

    Raises:
        OSError: it cannot be written.
    """
    path = directory / "access" / CLIENT_SECRETS
    _written(path, CLIENT_SECRETS_HEAD)
    return path


def _written(path: Path, text: str) -> None:
    """Make a file, unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".new")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        partial.replace(path)
