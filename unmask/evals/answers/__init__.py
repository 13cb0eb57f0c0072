"""What a text says its answer is, one small file per kind of answer. Knows no benchmark."""
