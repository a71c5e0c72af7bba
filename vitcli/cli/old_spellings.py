"""Old spellings of commands and options: they work for one release, with a note."""

ARGUMENTS = "RUN", "PICTURE", "EXPERIMENT"
"""The values of old options that are arguments now."""
OLD_SPELLINGS = (
    ("runs", "list", "ls"),
    ("runs", "compare", "diff"),
    ("data", "list", "ls"),
    ("experiments", "list", "ls"),
    ("predict", "--run RUN", "RUN ..."),
    ("attn-map", "--run RUN", "RUN ..."),
    ("attn-map", "--model RUN", "RUN ..."),
    ("explain", "--run RUN", "... RUN"),
    ("explain", "--image PICTURE", "... PICTURE"),
    ("import", "--experiment EXPERIMENT", "... EXPERIMENT"),
    ("import", "-e EXPERIMENT", "... EXPERIMENT"),
    ("export", "--to", "--format"),
    ("runs export", "--to", "--format"),
    ("runs ls", "--experiment", "--of"),
    ("ablate", "--only first", "--first"),
    ("table", "--seed", "--pairs"),
    ("data info", "--picture", "-o"),
    ("bench train", "--profile", "--trace"),
    ("bench data", "--profile", "--trace"),
)
"""Command, its old spelling, and its spelling today. An option whose value is an argument now moves
it to the place that ``...``, the other arguments, leaves."""


def spelled_today(args: list[str]) -> tuple[list[str], list[str]]:
    """Return a command line, without the program, in the spellings of today, and notes on them."""
    args, notes = list(args), []
    start = next((i for i, word in enumerate(args) if not word.startswith("-")), len(args))
    for path, old, new in OLD_SPELLINGS:
        end = start + len(path.split())
        if args[start:end] != path.split():
            continue
        changed = _replace(args[end:], old.split(), new)
        if changed != args[end:]:
            args[end:] = changed
            notes.append(f"note: 'vitcli {path} {old}' is now 'vitcli {path} {new}'")
    return args, notes


def _replace(words: list[str], old: list[str], new: str) -> list[str]:
    """Return the words after the command with an old spelling replaced."""
    if not old[0].startswith("-"):
        return [new, *words[1:]] if words[:1] == old else words
    options = words[: words.index("--")] if "--" in words else words
    for i, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name != old[0]:
            continue
        if old[-1] in ARGUMENTS:
            rest = words[:i] + words[i + (1 if equals else 2) :]
            moved = [value] if equals else words[i + 1 : i + 2]
            return [*moved, *rest] if new.endswith("...") else [*rest, *moved]
        if words[i : i + len(old)] == old or (equals and len(old) == 1):
            return [*words[:i], f"{new}{equals}{value}", *words[i + len(old) :]]
    return words
