"""The OpenAI HTTP API: one file per group of routes, over the same requests as gRPC."""
