"""Answers of others: read the formats in which people publish them, join them with a data set, and write ours in theirs."""
