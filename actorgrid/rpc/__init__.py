"""The gRPC API of a host: its description, and what protoc makes of that (docs/grpc.md)."""
