"""Identity and tokens."""
