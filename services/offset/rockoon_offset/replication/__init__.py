"""The journal as a log with copies."""
