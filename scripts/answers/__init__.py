"""Published answers: read their formats, join them with a data set, audit them, and export our answers in these formats."""
