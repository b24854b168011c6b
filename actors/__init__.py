"""Actors that run the cluster, one room per duty."""
