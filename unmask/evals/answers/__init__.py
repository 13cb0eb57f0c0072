"""Read the answer from a text, one small file per kind of answer. Knows no benchmark."""
