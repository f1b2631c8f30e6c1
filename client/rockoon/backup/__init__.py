"""Backup of a cluster: a consistent copy of logs, progress and routes, made while the cluster runs.

    creation        reads the cluster and writes a backup
    copying         copies the log of one broker
    manifest        contents of a backup, and their format
    pruning         removes old backups
    destination     directory, or object store, of backups
    restoring       writes the stores and the file of routes for a new cluster

The cut of a backup, docs/adr/0104: progress first, then the ends of the logs, then the routes.
"""
