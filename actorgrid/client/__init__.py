"""What applications use: connect, submit, map, run, state."""
