"""Plugin-based speculative decoding for llama.cpp."""
