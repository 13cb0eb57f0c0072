"""Check values against JSON schemas."""


def validate(value: object, schema: object) -> None:
    """Raise unless the value fits the schema."""
    import jsonschema  # takes seconds, which a worker without these tests need not spend

    jsonschema.validate(value, schema)
