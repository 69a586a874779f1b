"""One adapter over transformers' decoders: geometry, rotary positions, the canvas, attention."""
