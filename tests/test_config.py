"""Settings outside their range are refused at construction, with the range."""

from __future__ import annotations

import numpy as np
import pytest

from ragblend import errors
from ragblend.config import (
    BlendSettings,
    ChunkSettings,
    DiskLimits,
    GenerationSettings,
    PrefixSettings,
    ReuseSettings,
    StoreSettings,
)

WRONG = [
    (BlendSettings, {"ratio": 1.2}, "between 0 and 1, got 1.2"),
    (BlendSettings, {"ratio": -0.1}, "between 0 and 1"),
    (BlendSettings, {"ratio": "much"}, "auto or between 0 and 1, got 'much'"),
    (BlendSettings, {"ratio_floor": 1.5}, "ratio_floor must be between 0 and 1, got 1.5"),
    (BlendSettings, {"ratio": float("nan")}, "between 0 and 1, got nan"),
    (BlendSettings, {"overflow": "cut"}, "'refuse' or 'drop'"),
    (GenerationSettings, {"max_tokens": 0}, "at least 1"),
    (GenerationSettings, {"temperature": -1.0}, "not negative"),
    (GenerationSettings, {"top_p": 0.0}, "above 0"),
    (GenerationSettings, {"top_k": -1}, "not be negative"),
    (GenerationSettings, {"repetition_penalty": 0.0}, "above 0"),
    (GenerationSettings, {"stop": "END"}, "tuple of strings"),
    (GenerationSettings, {"stop": ("",)}, "must not be empty"),
    (GenerationSettings, {"temperature": float("inf")}, "finite"),
    (GenerationSettings, {"seed": 2**70}, "64 bits"),
    (ChunkSettings, {"tokens": 8}, "between 16 and 8192"),
]
WRONG_TYPES = [
    (BlendSettings, {"policy": None}, "policy must be text, got None"),
    (BlendSettings, {"ratio": True}, "ratio must be a number or 'auto', got True"),
    (BlendSettings, {"overflow": 3}, "overflow must be 'refuse' or 'drop', got 3"),
    (GenerationSettings, {"max_tokens": "5"}, "max_tokens must be a whole number, got '5'"),
    (GenerationSettings, {"max_tokens": 1.5}, "whole number"),
    (GenerationSettings, {"max_tokens": True}, "whole number"),
    (GenerationSettings, {"temperature": "0"}, "temperature must be a number, got '0'"),
    (GenerationSettings, {"seed": "a"}, "seed must be a whole number or None, got 'a'"),
    (GenerationSettings, {"stop": (1,)}, "tuple of strings"),
    (GenerationSettings, {"stop": None}, "tuple of strings"),
    (ChunkSettings, {"tokens": 256.0}, "tokens must be a whole number, got 256.0"),
    (DiskLimits, {"budget": "5GB"}, "budget must be a whole number or None, got '5GB'"),
    (StoreSettings, {"disk": 5}, "disk must be DiskLimits or None, got 5"),
    (PrefixSettings, {"automatic": 1}, "automatic must be true or false, got 1"),
    (ReuseSettings, {"learn_tokens": None}, "learn_tokens must be a whole number, got None"),
]


@pytest.mark.parametrize(("settings", "values", "message"), WRONG + WRONG_TYPES)
def test_a_bad_value_is_refused(settings, values, message):
    with pytest.raises(errors.ConfigError, match=message):
        settings(**values)


def test_numbers_of_numpy_are_numbers():
    settings = GenerationSettings(max_tokens=np.int64(4), temperature=np.float32(0.5), stop=["END"])
    assert (settings.max_tokens, settings.temperature) == (4, 0.5)
    assert BlendSettings(ratio=np.float32(0.5)).ratio == 0.5


def test_usage_errors_exit_with_2_and_failures_with_1():
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    status = {kind.__name__: kind.exit_status for kind in kinds}
    two = {name for name, value in status.items() if value == 2}
    assert two == {"UsageError", "ConfigError", "PathNotFoundError", "CacheHandleError", "ContextOverflowError"}
    assert set(status.values()) == {1, 2}


def test_every_error_is_drawn_in_the_tree():
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert name in (errors.__doc__ or ""), name
