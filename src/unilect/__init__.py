"""unilect makes any local language model answer the OpenAI API. See docs/design.md for how it is built."""
