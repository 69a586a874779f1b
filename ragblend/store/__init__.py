"""Chunk KV on disk and in memory: keys, format, catalogue, stores."""
