"""The ledger: durable log, replicated state machine, actor."""
