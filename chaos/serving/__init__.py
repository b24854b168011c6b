"""Replicas of a language model under chat traffic, simulated, behind gateways that choose by the real router."""
