"""The ledger's tables: one for each kind of record, with the verbs that change it."""
