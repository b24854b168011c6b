"""Links between hosts: frames, sessions and streams over mutual TLS, and a faulty twin in memory."""
