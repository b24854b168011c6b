"""The gRPC door of a host: a process that says in protobuf what the HTTP door says in JSON."""
