"""Trust between hosts: the cluster's authority, its certificates, join tokens, and what a host keeps of them."""
