"""Blending: plan a request, place chunk KV on a canvas, select and recompute rows."""
