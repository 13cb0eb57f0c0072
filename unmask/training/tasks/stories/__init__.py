"""The word problems of mini-gsm8k: one file per kind of story."""
