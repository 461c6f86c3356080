"""Running a memory on its cases: the loop, one case, one question, the reader."""
