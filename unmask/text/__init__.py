"""Text in, text out: prompts, generation, streaming, infilling."""
