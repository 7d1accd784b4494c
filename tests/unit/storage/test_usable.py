"""Whether a partition's files may be used."""

import pytest

from fencelog.errors import ExhaustedError, StorageError
from fencelog.storage.usable import Usable


def test_nothing_is_done_after_a_close_and_nobody_is_told_of_a_failure_then() -> None:  # D2
    told: list[bool] = []
    usable = Usable("t-0", lambda: told.append(True))
    usable.check()
    usable.close()
    assert not usable
    with pytest.raises(StorageError, match="t-0 is closed"):
        usable.check()
    usable.fail(OSError("late"))
    assert not told


def test_what_ran_out_is_tried_again_and_any_other_error_is_final() -> None:  # D2
    told: list[bool] = []
    usable = Usable("t-0", lambda: told.append(True))
    with pytest.raises(ExhaustedError), usable.fails_on_error():
        raise ExhaustedError("no file descriptor")
    assert usable
    with pytest.raises(OSError, match="broken"), usable.fails_on_error():
        raise OSError("broken")
    assert told == [True]
    with pytest.raises(StorageError, match=r"accepts no more writes: .*broken.*restart"):
        usable.check()
