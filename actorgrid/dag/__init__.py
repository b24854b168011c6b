"""Graphs of steps: what they are, whether one can run, where its steps are best run, and what that takes. No I/O."""
