"""Access keys as a client has them: given to `connect`, or from the environment.

ROCKOON_ACCESS_KEY            the key's name
ROCKOON_ACCESS_SECRET         its secret
ROCKOON_ACCESS_SECRET_FILE    or a file that holds it, and nothing else
"""

from collections.abc import Mapping
from pathlib import Path

from rockoon.errors import InvalidArgument
from rockoon_core.signature import AccessKey, Credentials, new_secret, verifier_of

__all__ = ["AccessKey", "credentials", "from_environment", "new_secret", "verifier_of"]

VARIABLE = "ROCKOON_ACCESS"
SECRET_BYTES_MAX = 4096


def from_environment(environment: Mapping[str, str]) -> AccessKey | None:
    """What the environment says; None for calls that are not signed.

    Raises:
        InvalidArgument: only half of it is given, or the file cannot be read.
    """
    name = environment.get(f"{VARIABLE}_KEY", "")
    secret = environment.get(f"{VARIABLE}_SECRET", "")
    file = environment.get(f"{VARIABLE}_SECRET_FILE", "")
    if secret and file:
        raise InvalidArgument(reason=f"{VARIABLE}_SECRET and {VARIABLE}_SECRET_FILE: one of them")
    if file:
        secret = read_secret(Path(file))
    if bool(name) != bool(secret):
        missing = f"{VARIABLE}_SECRET_FILE or {VARIABLE}_SECRET" if name else f"{VARIABLE}_KEY"
        raise InvalidArgument(reason=f"an access key has a name and a secret: set {missing}")
    return AccessKey(name, secret) if name else None


def read_secret(file: Path) -> str:
    """The secret in a file, without the end of its line.

    Raises:
        InvalidArgument: it cannot be read, or holds no secret.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(SECRET_BYTES_MAX).decode().strip()
    except OSError as failure:
        raise InvalidArgument(reason=f"{file}: {failure.strerror}") from failure
    except UnicodeDecodeError:
        raise InvalidArgument(reason=f"{file} holds no secret: it is no text") from None
    if not content:
        raise InvalidArgument(reason=f"{file} holds no secret: it is empty")
    return content


def credentials(access: AccessKey | None, environment: Mapping[str, str]) -> Credentials | None:
    """How a connection signs its calls; None when it does not.

    Args:
        access: None means what the environment says.
        environment: usually `os.environ`.

    Raises:
        InvalidArgument: the key cannot be used.
    """
    key = access or from_environment(environment)
    if key is None:
        return None
    try:
        return Credentials(key)
    except ValueError as failure:
        raise InvalidArgument(reason=str(failure)) from None
