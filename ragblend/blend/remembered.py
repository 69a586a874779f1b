"""What was found out about a model on this machine, kept in the user cache as JSON files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def remember(path: Path, facts: Mapping[str, object]) -> None:
    """Keep the facts where that is possible; a cache that cannot be written only costs the next start."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(facts))
        unfinished.replace(path)
    except OSError:
        return
