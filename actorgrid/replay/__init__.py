"""Replays production traces through the placement engine and the scheduler that serve a live cluster.

``workload`` and ``derive`` say what nodes and tasks are, ``tables`` reads them from CSV files and ``catalogue`` names
those that come with the package. ``inflation`` and ``simulation`` run them on a clock of their own; ``fragments`` and
``figures`` measure, ``plots`` draws.
"""
