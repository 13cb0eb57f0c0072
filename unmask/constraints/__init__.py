"""Constraints: texts that always fit a regular expression, a JSON schema, a list of choices or a grammar."""
