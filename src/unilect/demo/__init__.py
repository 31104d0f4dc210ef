"""
The bundled demonstration model, as files.

- `model.gguf`: the model for llama.cpp (Q8_0, chat template in its metadata)
- `hf/`: the same numbers as a Hugging Face folder (bfloat16 safetensors)
- `lora-pirate/`, `lora-robot/`: PEFT adapters that change its manner; the `.gguf` files beside
  them are the same for llama.cpp

Made by `training/` of the repository from text that its own generator writes. License: MIT.
"""
