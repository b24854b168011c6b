"""Faults of hosts: checks, their history, and what the leader does about them."""
