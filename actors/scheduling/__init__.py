"""The cluster's scheduler: waiting jobs and leases, and the order and places in which they start."""
