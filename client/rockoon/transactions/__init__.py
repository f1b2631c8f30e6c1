"""Transactional messages: a message is delivered if and only if a local transaction commits."""
