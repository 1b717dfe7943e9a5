from __future__ import annotations

import socket

import pytest

from common.errors import ConfigError
from octavo.stack.ports import require_free


def test_a_port_that_somebody_listens_on_is_refused_by_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--grpc-port: port {port}"):
            require_free("127.0.0.1", port, "--grpc-port")
        with pytest.raises(ConfigError, match="--port"):
            require_free("0.0.0.0", port, "--port")


def test_a_port_just_given_up_with_its_connections_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()  # the server's side closes first and is left in TIME_WAIT
        client.close()
    require_free("127.0.0.1", port, "--port")


def test_port_0_is_always_free_and_an_unknown_host_is_named() -> None:
    require_free("127.0.0.1", 0, "--port")
    with pytest.raises(ConfigError, match="--host"):
        require_free("256.1.1.1", 1, "--port")
