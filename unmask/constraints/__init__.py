"""Constraints: texts that always fit a regular expression, a JSON schema or a list of choices."""
