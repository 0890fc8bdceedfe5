"""Measures strategies against plain decoding and against llama.cpp's own server; see ``specframe bench --help``."""
