"""Parts of the Raft core: log, progress, quorums, configuration, reads, snapshots and the bytes of all of them."""
