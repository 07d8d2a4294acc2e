"""A small continuous-batching engine on top of Hardpoint: a model, a paged cache, a scheduler; no word of CPU or CUDA.

Read `engine.py` first: it is the whole conversation with Hardpoint. `scheduler.py` and `cache.py` need no torch.
"""
