"""Resources: topics, groups, access keys and live settings that files declare.

files.py reads the files, fields.py checks them, plan.py compares them with the cluster's state, and
cluster_state.py reads the state and makes the changes.
"""
