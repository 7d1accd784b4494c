"""Every adapter that keeps a contract, by name."""

from pathlib import Path

import pytest

from tests.support import metadata_stores


@pytest.fixture(params=metadata_stores.ALL)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> metadata_stores.Open:
    """Open the store; a second call after a close opens the same one again."""
    return metadata_stores.opener(request.param, tmp_path)
