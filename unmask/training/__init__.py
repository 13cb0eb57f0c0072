"""How the shipped models were made: the tasks, the vocabulary, the objective and the trainer."""
