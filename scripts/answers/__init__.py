"""Answers of others: read the formats in which people publish them, join them with a data set, audit them, and write ours in theirs."""
