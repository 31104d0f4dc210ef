"""Decoders of what servers and children send, shared by engines and upstreams."""
