"""PyTorch's scaled_dot_product_attention as an attention backend for Hardpoint."""
