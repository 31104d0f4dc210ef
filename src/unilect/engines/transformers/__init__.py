"""Folders of Hugging Face, run by transformers."""
