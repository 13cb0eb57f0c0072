"""A checkpoint's tokenizer: text to token ids, special ids and chat templates."""
