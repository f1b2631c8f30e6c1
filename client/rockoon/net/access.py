"""Access key of a connection: an argument of `connect`, or environment variables.

ROCKOON_ACCESS_KEY            name of the key
ROCKOON_ACCESS_SECRET         its secret
ROCKOON_ACCESS_SECRET_FILE    or a file that contains only the secret; read again when it changes
"""

from collections.abc import Mapping
from pathlib import Path

from rockoon.errors import InvalidArgument
from rockoon_core.pem_files import PemError
from rockoon_core.secret_files import RenewedSecrets
from rockoon_core.signature import AccessKey, Credentials, new_secret, verifier_of

__all__ = ["AccessKey", "credentials", "from_environment", "new_secret", "verifier_of"]

VARIABLE = "ROCKOON_ACCESS"


def from_environment(environment: Mapping[str, str]) -> AccessKey | None:
    """Return the access key of the environment; None if none is set.

    Raises:
        InvalidArgument: only the name or only the secret is set, or the file cannot be read.
    """
    name = environment.get(f"{VARIABLE}_KEY", "")
    secret = environment.get(f"{VARIABLE}_SECRET", "")
    file = environment.get(f"{VARIABLE}_SECRET_FILE", "")
    if secret and file:
        raise InvalidArgument(reason=f"set {VARIABLE}_SECRET or {VARIABLE}_SECRET_FILE, not both")
    if file:
        secret = _opened(file).first()
    if bool(name) != bool(secret):
        missing = f"{VARIABLE}_SECRET_FILE or {VARIABLE}_SECRET" if name else f"{VARIABLE}_KEY"
        raise InvalidArgument(reason=f"an access key has a name and a secret: set {missing}")
    return AccessKey(name, secret, file) if name else None


def _opened(file: str) -> RenewedSecrets:
    try:
        return RenewedSecrets(Path(file))
    except PemError as failure:
        raise InvalidArgument(reason=str(failure)) from failure


def credentials(access: AccessKey | None, environment: Mapping[str, str]) -> Credentials | None:
    """Return the credentials that sign a connection's calls; None for unsigned calls.

    Args:
        access: the key; None uses the environment.
        environment: usually `os.environ`.

    Raises:
        InvalidArgument: the key is invalid.
    """
    key = access or from_environment(environment)
    if key is None:
        return None
    try:
        return Credentials(key, renewed=_opened(key.secret_file).first if key.secret_file else None)
    except ValueError as failure:
        raise InvalidArgument(reason=str(failure)) from None
