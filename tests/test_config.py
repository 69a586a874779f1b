"""Settings outside their range are refused at construction, with the range."""

from __future__ import annotations

import pytest

from ragblend import errors
from ragblend.config import BlendSettings, ChunkSettings, GenerationSettings

WRONG = [
    (BlendSettings, {"ratio": 1.2}, "between 0 and 1, got 1.2"),
    (BlendSettings, {"ratio": -0.1}, "between 0 and 1"),
    (BlendSettings, {"ratio": "much"}, "auto or between 0 and 1, got 'much'"),
    (BlendSettings, {"ratio_floor": 1.5}, "ratio_floor must be between 0 and 1, got 1.5"),
    (BlendSettings, {"ratio": float("nan")}, "between 0 and 1, got nan"),
    (BlendSettings, {"overflow": "cut"}, "'refuse' or 'drop'"),
    (GenerationSettings, {"max_tokens": 0}, "at least 1"),
    (GenerationSettings, {"temperature": -1.0}, "not be negative"),
    (GenerationSettings, {"top_p": 0.0}, "above 0"),
    (GenerationSettings, {"top_k": -1}, "not be negative"),
    (GenerationSettings, {"repetition_penalty": 0.0}, "above 0"),
    (GenerationSettings, {"stop": "END"}, "tuple of strings"),
    (GenerationSettings, {"stop": ("",)}, "must not be empty"),
    (ChunkSettings, {"tokens": 8}, "between 16 and 8192"),
]


@pytest.mark.parametrize(("settings", "values", "message"), WRONG)
def test_a_bad_value_is_refused(settings, values, message):
    with pytest.raises(errors.ConfigError, match=message):
        settings(**values)


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
