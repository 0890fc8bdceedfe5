"""The llama.cpp backend: the only part of specframe that touches native code.

Importing it loads nothing; ``load_library`` does.
"""
