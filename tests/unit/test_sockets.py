"""Names for Unix sockets: a home may lie as deep as it likes."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from nanobot.store.home import LONGEST_NAME, short_name


def test_a_name_that_fits_is_used_as_it_is(tmp_path: Path) -> None:
    with short_name(tmp_path / "s") as name:
        assert name == str(tmp_path / "s")


def test_a_socket_in_a_deep_directory_is_bound_and_found(tmp_path: Path) -> None:
    place = tmp_path / ("deep" * 40) / "gateway.sock"
    place.parent.mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as server:
        with short_name(place) as bound:
            server.bind(bound)
        server.listen()
        with closing(socket.socket(socket.AF_UNIX)) as client:
            with short_name(place) as found:
                client.connect(found)
            accepted, _ = server.accept()
            accepted.close()

    assert place.is_socket()
    assert max(len(bound), len(found)) <= LONGEST_NAME
    assert not Path(bound).parent.is_symlink()
