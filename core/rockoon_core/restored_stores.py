"""Ids of stores that a restore from a backup makes.

Routes and stores are restored separately, on different machines. The restored routes name the store
of each log, so both sides compute its id.
"""

import hashlib

STORE_ID_DIGITS = 32


def restored_store_id(cluster_id: int, kind: str, log: str) -> str:
    """Return the id of the restored store of a log: 32 hexadecimal digits.

    Args:
        cluster_id: number that identifies the cluster.
        kind: "broker" or "offset".
        log: name of the log.
    """
    text = f"restored/{cluster_id:016x}/{kind}/{log}"
    return hashlib.sha256(text.encode()).hexdigest()[:STORE_ID_DIGITS]
