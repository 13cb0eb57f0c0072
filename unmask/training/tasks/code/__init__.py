"""Small programs: what they do, how they are described, how they are written, and how they are run."""
