"""The OpenAI-compatible door of a host: processes that carry requests to replicas of model services."""
