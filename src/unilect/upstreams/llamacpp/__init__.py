"""llama.cpp's and PowerInfer's native API."""
