"""The object store of a host: a process of its own that keeps large values of sessions, and outlives the agent."""
