"""Tests for stores of your own. They need pytest.

::

    import pytest
    from ragblend.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)
"""

from ragblend.testing.conformance import StoreConformance
from ragblend.testing.kv import numbered_key, random_kv, same_kv

__all__ = ["StoreConformance", "numbered_key", "random_kv", "same_kv"]
