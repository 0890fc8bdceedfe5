"""The main job on a real model: generate plain and as it is by default, show both side by side.

Exits with 1 if the two texts differ, which they must not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

import specframe
from specframe.diagnosis import diagnose_runtime

MODEL = "smollm2-135m"  # fetched by `specframe pull`
MAX_TOKENS = 160
PROMPT = """Repeat this Python code unchanged, with nothing before or after it.

```python
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def peek(self):
        if not self.items:
            raise IndexError("peek at an empty stack")
        return self.items[-1]

    def __len__(self):
        return len(self.items)
```
"""


def main() -> int:
    """Run the comparison; return the exit code."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    messages = [{"role": "user", "content": PROMPT}]
    with specframe.load(MODEL) as llm:
        console.print(f"llama.cpp: {llm.info.library}", *diagnose_runtime().advice, sep="\n", highlight=False)
        llm.chat(messages, max_tokens=1, strategy="none")  # the first request pays for loading pages of the file
        plain = llm.chat(messages, max_tokens=MAX_TOKENS, temperature=0.0, strategy="none", reuse_prefix=False)
        drafted = llm.chat(messages, max_tokens=MAX_TOKENS, temperature=0.0, reuse_prefix=False)
    console.print(comparison(plain, drafted))
    if plain.tokens != drafted.tokens:
        console.print("[bold red]The texts differ: drafting must never change the text. Please report this.")
        return 1
    gain = (drafted.stats.tokens_per_second or 0.0) / (plain.stats.tokens_per_second or 1.0)
    console.print(
        f"The same {len(plain.tokens)} tokens, {gain:.2f} times as fast.", style="bold green", highlight=False
    )
    return 0


def comparison(plain: specframe.Completion, drafted: specframe.Completion) -> Table:
    """Both runs beside each other."""
    table = Table(title="Generated with the same model, prompt and settings", show_lines=True, expand=True)
    table.add_column()
    for name in ("plain", drafted.strategy):
        table.add_column(name, ratio=1)  # equally wide, so that equal texts are broken alike
    table.add_row("text", Text(plain.text), Text(drafted.text))
    facts: dict[str, Callable[[specframe.Completion], str]] = {
        "tokens": lambda run: str(run.completion_tokens),
        "target batches": lambda run: str(run.stats.steps),
        "drafted, accepted": lambda run: f"{run.stats.verified}, {run.stats.accepted}",
        "tokens/s": lambda run: f"{run.stats.tokens_per_second or 0.0:.1f}",
    }
    for name, of in facts.items():
        table.add_row(name, of(plain), of(drafted))
    return table


if __name__ == "__main__":
    sys.exit(main())
