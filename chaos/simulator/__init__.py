"""Whole clusters of the real cores on virtual time, in one thread: the same seed is the same run, bit for bit.

``clock`` and ``rng`` are all the time and chance there is; ``network`` and ``disk`` fail as real ones do; ``node`` is
one host with the real RaftCore and ledger on them; ``cluster`` puts them together and ``run`` plays one seed.
"""
