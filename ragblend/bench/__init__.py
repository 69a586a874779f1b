"""``ragblend bench``: what users run on their own model and data."""
