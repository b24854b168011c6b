"""Workers, shims, attempts and their results."""
