"""Files of models on Hugging Face's hub."""
