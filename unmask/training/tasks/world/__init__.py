"""The closed world that the three choice tasks ask about."""
