import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    import chromium

    found = chromium.Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
