"""What the tests of generated scripts share."""

from __future__ import annotations

import pytest

from .training import MODES, Training, write_script


@pytest.fixture(scope="session", params=MODES)
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A script and its uninterrupted run on two ranks."""
    folder = tmp_path_factory.mktemp(request.param)
    training = Training(write_script(folder, async_mode=request.param), folder / "straight")
    training.finish()
    return training
