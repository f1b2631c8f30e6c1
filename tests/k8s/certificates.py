"""Certificates of the test cluster itself, made with openssl."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from k8s.shell import run

DAYS = 30
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def authority(folder: Path, name: str) -> None:
    """Create ca.key and ca.crt in a folder unless they exist."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "ca.key").exists():
        return
    files = ("-keyout", folder / "ca.key", "-out", folder / "ca.crt")
    run("openssl", "req", "-x509", *CURVE, *files, "-days", DAYS, "-subj", f"/CN={name}")


def certificate(
    folder: Path, key: Path, target: Path, subject: str, names: Sequence[str] = ()
) -> None:
    """Create a key and a certificate for server and client use, signed by the folder's authority.

    Args:
        folder: has ca.key and ca.crt.
        key: file of the new key.
        target: file of the new certificate.
        subject: distinguished name, such as `/CN=rockoon-broker`.
        names: subject alternative names with their types, such as `DNS:rockoon-broker`.
    """
    text = "extendedKeyUsage=serverAuth,clientAuth\n"
    if names:
        text += f"subjectAltName={','.join(names)}\n"
    with tempfile.TemporaryDirectory() as temporary:
        request, extensions = Path(temporary, "csr"), Path(temporary, "ext")
        extensions.write_text(text)
        run("openssl", "req", "-new", *CURVE, "-keyout", key, "-out", request, "-subj", subject)
        signer = ("-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial")
        files = ("-in", request, "-out", target, "-extfile", extensions)
        run("openssl", "x509", "-req", *files, *signer, "-days", DAYS)
