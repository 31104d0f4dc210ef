"""GGUF files, run by llama.cpp's server."""
