"""RDMA between hosts: messages over the verbs of libibverbs, with the peers' TLS link beside them (docs/rdma.md)."""
