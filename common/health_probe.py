"""`python -m common.health_probe HOST:PORT`: exit 0 if the gRPC server there says SERVING.

For health checks of containers, which bring no tool that speaks gRPC. The scheduler is serving
while an executor is ready, an executor once its model is warm.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0


def probe(address: str) -> str:
    """What is wrong; empty if the server is serving."""
    # A proxy meant for the internet would be asked for 127.0.0.1 too.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m common.health_probe HOST:PORT\n")
        return 2
    problem = probe(arguments[0])
    if problem:
        sys.stderr.write(f"{arguments[0]}: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
