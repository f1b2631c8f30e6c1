"""The broker's index by key: RocketMQ's `index/` directory, derived from the log, and its lookups.

    log → follower → key_index → active_file → index/20260131120000000
             query → key_index → lookup ↗

Off the append path: `follower` takes the log in small `pieces` behind its visible end and gives
them to `key_index`, in another thread. Nothing here is needed to recover the log; whatever is
doubtful is deleted and made again from it. Reading order: `directory`, `active_file`, `gaps`,
`reopening`, `key_index`, `lookup`, `pace`, `pieces`, `follower`.
"""
