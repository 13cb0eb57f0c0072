"""Code of the helper interpreter; imports only the standard library and this folder."""
