"""Paths of messages between two processes of one host, through memory that both have mapped."""
