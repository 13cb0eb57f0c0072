"""One small file per benchmark: data source, prompt, answer extraction and scoring."""
