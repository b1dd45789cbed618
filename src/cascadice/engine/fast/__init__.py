"""Ways to run the operator fast: loops over threads, vmap, compile, CUDA graphs, tapes, reused buffers."""
