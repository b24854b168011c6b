"""Where a node's Raft state lives: the log on disk and its writer, the store of snapshots, and a twin in memory."""
