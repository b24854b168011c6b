"""Model services: what is served where, and which replica gets a request. Decisions only."""
