"""`unilect bench`: measures streams of any OpenAI-like server at rising load."""
