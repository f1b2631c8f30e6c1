"""Administration of topics, groups, progress, stored messages, access keys and logs."""
