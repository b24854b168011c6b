"""Calls, files and connections between the servers of different hosts."""
