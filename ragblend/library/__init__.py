"""Documents in, chunks with embeddings and KV out: loading, chunking, embedding, search."""
