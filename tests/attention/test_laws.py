"""Every law on every mechanism, variant and mode. A new line in MECHANISMS is tested by itself."""

from collections.abc import Callable

import pytest

from whence.attention import MECHANISMS, laws


@pytest.mark.parametrize("mode", laws.modes(MECHANISMS.values()), ids=str)
@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[laws.Mode], None], mode: laws.Mode) -> None:
    law(mode)
