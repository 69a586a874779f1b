"""Tensor operations of the blend. ``ops`` is the only entry."""
