"""What clients do with a cluster while it suffers: each workload is a few clients and their next call."""
