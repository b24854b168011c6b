"""What is said when an agent is started as root."""

import pytest

from actorgrid.actors.host.start_checks import warning_of_root
from actorgrid.errors import StartFailed


def test_root_is_warned_of_accepted_or_refused_as_the_setting_says() -> None:
    assert warning_of_root(1000, "refuse") is None
    assert warning_of_root(0, "accept") is None
    assert "work runs as root" in (warning_of_root(0, "warn") or "")
    with pytest.raises(StartFailed, match=r"security\.work_as_root=accept"):
        warning_of_root(0, "refuse")
