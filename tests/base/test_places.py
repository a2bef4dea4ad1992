"""Places that are looked at before anything is written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError
from baregrad.base.places import check_writable


def test_a_file_in_a_folder_may_be_written(tmp_path: Path) -> None:
    check_writable(tmp_path / "new", "no")
    (tmp_path / "old").write_text("old")
    check_writable(tmp_path / "old", "no")
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("place", (".", "none/file", "old/file"))
def test_other_places_are_refused_by_what_they_were_for(tmp_path: Path, place: str) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(ArgumentError, match="figures cannot be written") as caught:
        check_writable(tmp_path / place, "figures cannot be written")
    assert str(tmp_path / place) in str(caught.value)
