"""One small file per benchmark: where the data comes from, prompt, answer extraction, scoring."""
