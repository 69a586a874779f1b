"""``ragblend bench compare``: the same prompts, answered by this package and by others on the same machine."""
