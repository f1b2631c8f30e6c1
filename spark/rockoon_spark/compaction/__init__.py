"""Parts of `jobs.compact`.

plan          what is read, cut and covered
target        a store that is compacted: directory_target, or broker_target, over the wire
sources       where records come from; log_end: where a log on a disk ends
steps         the steps as functions from messages to messages; exchange: who carries those
survey        the first step: the newest record of each key (newest, key_hash)
copying       the second: what is left, byte for byte; upload: into a broker
"""
