"""CUDA through CuPy: kernels generated from the operators' meanings, vendor libraries for products, captured graphs."""
