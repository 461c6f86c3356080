"""MSC-E generated anew: `python -m scripts.make_msc_e --out DIR [--conversations 70 --rounds 200 --model NAME --base-url URL]`.

After Rezazadeh et al. (MemTree, ICLR 2025), A.2.3 and A.2.4: a chat of MSC is continued by two rounds at a time, in view of its
last eight turns, until it has all its rounds, and each step gets a question that Bob can ask Alex about what Alex said in it.

**These are not the paper's data**, which were never published: results on them are not comparable with the paper's, and with
each other only on the same file. It is a data set version of its own (`VERSION`). The model is the one given, the prompts
(`memsys/prompts/msc_e`) are in our own words, and where the paper is silent the choices are ours:
- the seed is the first session of an MSC conversation, in file order and cut to an even number of rounds, so that no step lies
  across two bins of 40 rounds; speaker 1 is Alex. Where there are fewer seeds than conversations, seeds are drawn upon again;
- all conversations have exactly the rounds asked for (the paper: 200.3 ± 16.7), and one question a step, so about 97 (the
  paper: 101.9 ± 8.6, asked of stretches of unknown length);
- the evidence of a question is the turns of its step, its position the round in which the step ends;
- a reply that is not the turns asked for in strict alternation, or no new question, is asked for again, at most `--retries` times.

Every step is appended to `<out>/msc_e.jsonl.parts/`: the same command goes on where it was stopped. When all is there,
`<out>/msc_e.jsonl` is written in the format of `data_loaders.msc_e`, and `msc_e.jsonl.about.json` says how it was made.

Without `--base-url` no model is asked: turns of other MSC conversations continue the chat and the extractive engine makes the
questions. That is a stand-in, and the file says so.
"""

from __future__ import annotations

import sys

from scripts.commands.make_msc_e import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
