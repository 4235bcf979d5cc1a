"""One world of four processes for all of these tests; smaller worlds are the first of its ranks."""

import pytest

from worlds import world_of


@pytest.fixture(scope="session", name="world")
def _world():
    with world_of(4) as world:
        yield world
