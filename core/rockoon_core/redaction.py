"""Addresses without their secrets, for error texts and log lines. Pure.

A URI may have a user name and a password in front of its host (`s3://KEY:SECRET@bucket/logs`), or a
signature among its parameters (`abfs://…?sig=…`). Parsers of URIs quote them in their errors.
"""

import re

_MASK = "***"
# A password of S3 may have slashes, which a valid URI would escape: with a colon before the first
# slash, everything up to the last @ is masked. This may mask a path too, but never too little.
_USER = re.compile(
    r"""(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?:[^\s/'"@:]*:[^\s'"]*@|[^\s/'"@]*@)""", re.IGNORECASE
)
_PARAMETER = re.compile(
    r"""(?P<name>[?&](?:sig|[^=&\s'"]*(?:secret|passw|token|credential|signature|access_?key"""
    r"""|account_?key)[^=&\s'"]*)=)[^&\s'"#]*""",
    re.IGNORECASE,
)


def redacted(text: object) -> str:
    """Replace user names, passwords and signatures of URIs in a text by asterisks.

    Args:
        text: an address, an exception, or a sentence with addresses.
    """
    return _PARAMETER.sub(rf"\g<name>{_MASK}", _USER.sub(rf"\g<scheme>{_MASK}@", str(text)))
