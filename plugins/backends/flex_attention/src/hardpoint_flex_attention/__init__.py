"""PyTorch's flex_attention as an attention backend for Hardpoint."""
