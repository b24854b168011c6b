"""The HTTP server of a host: its sockets, its event loop, its route table and what every route needs."""
