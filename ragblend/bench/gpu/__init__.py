"""Measurements of the kernels and of whole requests on a GPU, with random weights in the shapes of known models."""
