"""The broker's index by key: RocketMQ's `index/` directory, derived from the log, and lookups.

    log → follower → key_index → active_file → index/20260131120000000
             query → key_index ↗

Indexing is off the append path: `follower` reads the visible log in small chunks and passes
them to `key_index` on another thread. Recovery of the log does not need the index; doubtful
files are deleted and rebuilt from the log. Reading order: `directory`, `active_file`, `gaps`,
`reopening`, `key_index`, `follower`.
"""
