"""Files that contain secrets, read again when they change."""

from pathlib import Path

from rockoon_core.pem_files import PemError, RenewedFiles
from rockoon_core.signature import secret_fault

SECRET_BYTES_MAX = 4096


class RenewedSecrets:
    """A file with one secret per line; the first one signs.

    Kubernetes mounts a Secret as one such file, so a rotation needs no restart. If a renewed
    file cannot be used, the former secrets stay in use.

    Raises:
        PemError: as `read_secrets`.
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
    """Read a file's secrets. Raises PemError if it has none, or one that is not safe."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(SECRET_BYTES_MAX + 1)
            content = raw.decode()
    except OSError as failure:
        raise PemError(f"{path}: {failure.strerror}") from failure
    except UnicodeDecodeError:
        raise PemError(f"{path} contains no secret: it is not text") from None
    found = tuple(filter(None, map(str.strip, content.splitlines())))
    if not found:
        raise PemError(f"{path} contains no secret: it is empty")
    if len(raw) > SECRET_BYTES_MAX:
        raise PemError(f"{path} has more than {SECRET_BYTES_MAX} bytes: use one secret per line")
    for number, secret in enumerate(found, 1):
        if secret.startswith("#"):
            raise PemError(f"{path}: secret {number} begins with #: comments are not possible")
        if fault := secret_fault(secret):
            raise PemError(f"{path}: secret {number} has {fault}")
    return found
