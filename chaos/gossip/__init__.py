"""Membership at scale: hundreds to thousands of hosts of the real core on virtual time, in one thread.

``simulation`` is hosts and a network between them; ``measures`` are the figures; ``scenarios`` are faults with what
must hold at their end, and ``mutants`` the bugs they must catch. The same seed is the same run.
"""
