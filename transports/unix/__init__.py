"""Messages between the processes of a host: a mesh of Unix sockets under Thespian."""
