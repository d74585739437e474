"""The engine: formats and algorithms in Cython, compiled without the Python interpreter."""
