"""The Python API for notebooks and scripts, with the same steps as the commands: load a data set, build a memory, ask, score, compare.

    from scripts.door import Lab, compare, in_words     # installed: from memsys_bench import Lab, compare, in_words

    lab = Lab("profile=smoke", "data.size=20")           # settings as on the command line
    locomo = lab.load("locomo")                          # a file of conf/dataset
    bm25 = lab.score(lab.ask("bm25", locomo, k=5))       # a file of conf/memory, with settings of your own
    mine = lab.score(lab.ask(Mine, locomo))              # or a class of your own, from a module
    print(in_words(compare(mine, bm25, "locomo_f1")))    # paired difference, intervals, p
    print(markdown(lab.table(bm25, mine)))               # the table, caption and costs included
    lab.frame(bm25, mine).groupby("memory").mean(numeric_only=True)  # a pandas frame, one row a memory and question

Folders, identities, cache and files are those of `memsys-bench run`, which uses the same functions: the API and the command read each
other's answers. In both, a failed call is an outcome that is counted and shown.
"""

from __future__ import annotations

from eval.report.rendering import markdown
from scripts.lab.lab import Answers, Lab, Scored, compare, in_words

__all__ = ["Answers", "Lab", "Scored", "compare", "in_words", "markdown"]
