"""The model in the child: its folder, its weights, its LoRA adapters, its kernels."""
