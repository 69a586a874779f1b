"""``ragblend bench growth``: what a library and a request cost as they grow."""
