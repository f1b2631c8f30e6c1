"""Files that contain secrets, read again when they change."""

from pathlib import Path

from rockoon_core.pem_files import PemError, RenewedFiles

SECRET_BYTES_MAX = 4096


class RenewedSecrets:
    """A file with one secret per line; the first one signs.

    A Secret that Kubernetes mounts is such a file, and a rotation needs no restart. If a renewed
    file cannot be used, the former secrets stay in use.

    Raises:
        PemError: the file cannot be read or contains no secret.
    """

    def __init__(self, path: Path) -> None:
        self._files = RenewedFiles([path], lambda: read_secrets(path))

    def secrets(self) -> tuple[str, ...]:
        """Return the secrets; costs a `stat` of the file."""
        self._files.reload()
        return self._files.value

    def first(self) -> str:
        return self.secrets()[0]


def read_secrets(path: Path) -> tuple[str, ...]:
    """Read the secrets in a file. Raises PemError."""
    try:
        with path.open("rb") as stream:
            content = stream.read(SECRET_BYTES_MAX).decode()
    except OSError as failure:
        raise PemError(f"{path}: {failure.strerror}") from failure
    except UnicodeDecodeError:
        raise PemError(f"{path} contains no secret: it is not text") from None
    found = tuple(filter(None, map(str.strip, content.splitlines())))
    if not found:
        raise PemError(f"{path} contains no secret: it is empty")
    return found
