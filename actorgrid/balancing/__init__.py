"""Which of several targets gets a request: policies, loads that were heard of, affinity. Decisions only."""
