"""The ledger: the cluster's replicated state, its commands and records, and a copy of it that every server may keep."""
