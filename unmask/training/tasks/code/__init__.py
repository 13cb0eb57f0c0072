"""Small programs: their stages, descriptions, code and tests."""
