"""Hugging Face folders, run by transformers."""
