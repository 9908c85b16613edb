"""Object storage: one protocol, one S3 client, decorators, a memory store."""
