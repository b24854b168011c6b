"""Graphs of steps on a cluster: which steps are released when and where, and what is decided about the others."""
