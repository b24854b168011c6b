"""Bytes between processes and hosts."""
