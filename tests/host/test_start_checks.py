"""What a start says of the clock and of what it begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from actorgrid.actors.host.start_checks import beginning_note, clock_note, refuse_foreign_address
from actorgrid.actors.security.authority import create_authority
from actorgrid.actors.security.certificates import check_time
from actorgrid.actors.security.keys import new_private_key
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import CertificateRefused, InvalidSetting


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    made = HostPaths(tmp_path / "d")
    made.make()
    return made


def test_a_clock_that_was_set_back_is_named(paths: HostPaths) -> None:
    assert clock_note(paths, 0.0) == ""
    paths.host_file.write_text("{}")
    os.utime(paths.host_file, (100_000.0, 100_000.0))
    assert clock_note(paths, 100_000.0 - 60) == "" and clock_note(paths, 200_000.0) == ""
    assert "clock is 2 h 0 min behind" in clock_note(paths, 100_000.0 - 7200)


def test_a_certificate_of_later_names_the_clock(paths: HostPaths) -> None:
    authority = create_authority("c", new_private_key(), 1_000_000.0, 1)
    with pytest.raises(CertificateRefused, match="clock is wrong, by 1 h") as refused:
        check_time(authority.certificate, 1_000_000.0 - 7200, "the certificate")
    assert "set the clock" in refused.value.hint


def test_a_first_start_says_what_it_begins_and_how_a_member_comes_back(paths: HostPaths) -> None:
    assert "NEW cluster" in beginning_note(paths, True) and "alone" in beginning_note(paths, False)
    assert "actorgrid up --join" in beginning_note(paths, True)
    paths.host_file.write_text("{}")
    assert beginning_note(paths, True) == ""


def test_an_address_of_elsewhere_is_refused_with_those_that_are_here() -> None:
    refuse_foreign_address("127.0.0.1", "")
    with pytest.raises(InvalidSetting) as refused:
        refuse_foreign_address("198.51.100.77", "actorgrid up --listen")
    assert "127.0.0.1" in refused.value.found
