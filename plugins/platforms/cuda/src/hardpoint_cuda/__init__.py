"""The CUDA platform for Hardpoint. The entry point names `hardpoint_cuda.plugin:plugin`."""
