"""Training of the shipped models: tasks, vocabulary, objective and trainer."""
