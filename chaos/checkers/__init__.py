"""What must hold in every run, checked as it happens and at its end.

``raft`` and ``durability`` watch the cores, ``grants`` and ``jobs`` the ledger and the hosts' processes, ``answers``
and ``linearizability`` what clients were told. Each checker is told of events and raises at the first that may not be.
"""
