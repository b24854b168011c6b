"""Large things between hosts by pieces, over several TLS connections at once, each with a thread of its own."""
