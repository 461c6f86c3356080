"""A count with its noun."""


def counted(count: int, noun: str, spec: str = "") -> str:
    """`1 history`, `2 histories`.

    Args:
        noun: the singular; the words before the last one stay, as in `own line`.
        spec: format of the number, such as `,`.
    """
    if count != 1:
        ends_in_y = noun.endswith("y") and noun[-2] not in "aeiou"
        noun = f"{noun[:-1]}ies" if ends_in_y else f"{noun}s"
    return f"{count:{spec}} {noun}"
