"""The cluster secret of a local cluster: made once, kept in a file that only its owner reads."""

import os
from pathlib import Path

from rockoon.net.access import AccessKey, new_secret, read_secret
from rockoon_core.signature import CLUSTER_KEY_ID

FILE = "cluster-secret"


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
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".new")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(new_secret() + "\n")
        partial.replace(path)
    return AccessKey(CLUSTER_KEY_ID, read_secret(path))
