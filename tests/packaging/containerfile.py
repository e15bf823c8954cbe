"""Reads a Containerfile that keeps to a few plain forms, and says what is wrong with one that does not.

The forms: FROM IMAGE [AS NAME] · WORKDIR /PATH · ENV NAME=VALUE · COPY [--from=STAGE] SOURCE... DESTINATION · RUN COMMAND ·
ENTRYPOINT ["WORD", ...]. No variables and no patterns outside of RUN. A comment fills its line; a line that ends in a backslash
goes on in the next one.
"""

import dataclasses
import json
import re

FORMS = {
    "FROM": r"(?P<image>[\w./:-]+)(?: AS (?P<name>\w+))?",
    "WORKDIR": r"(?P<path>/[\w./-]*)",
    "ENV": r"(?P<name>\w+)=(?P<value>[\w./:,+-]*)",
    "COPY": r"(?:--from=(?P<stage>\w+) )?(?P<sources>[\w./-]+(?: [\w./-]+)*) (?P<destination>[\w./-]+)",
    "RUN": r"(?P<command>[^\[].*)",
    "ENTRYPOINT": r"(?P<words>\[.*\])",
}


class Invalid(Exception):
    """A line that is none of the forms; the text names it."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    line: int
    name: str
    parts: dict  # the named groups of its form

    def __str__(self):
        return f"line {self.line}: {self.name} " + " ".join(value for value in self.parts.values() if value)


@dataclasses.dataclass
class Stage:
    name: str  # "" if it has none
    image: str
    steps: list
    entrypoint: list


def logical_lines(text):
    """(number, text) of each instruction's line, continued lines joined, without comments and empty lines."""
    number, joined = 0, ""
    for count, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not (line.strip() or joined):
            continue
        number = number if joined else count
        joined += line.rstrip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        yield number, joined.strip()
        joined = ""
    if joined:
        raise Invalid(f"line {number}: the last line goes on in none")


def instruction(number, line):
    name, _, rest = line.partition(" ")
    if name not in FORMS:
        raise Invalid(f"line {number}: {name} is not one of {', '.join(FORMS)}")
    match = re.fullmatch(FORMS[name], rest.strip())
    if not match:
        raise Invalid(f"line {number}: {name} in a form that is not known: {rest}")
    return Instruction(number, name, match.groupdict())


def words_of(step):
    try:
        words = json.loads(step.parts["words"])
    except json.JSONDecodeError as problem:
        raise Invalid(f"line {step.line}: ENTRYPOINT is no list of words: {problem}") from problem
    if not words or not all(isinstance(word, str) for word in words):
        raise Invalid(f"line {step.line}: ENTRYPOINT is no list of words")
    return words


def parse(text):
    """The stages in their order. Raises Invalid."""
    stages = []
    for number, line in logical_lines(text):
        step = instruction(number, line)
        if step.name == "FROM":
            stages.append(Stage(step.parts["name"] or "", step.parts["image"], [], []))
            continue
        if not stages:
            raise Invalid(f"{step}: stands before the first FROM")
        if step.name == "COPY" and step.parts["stage"] and step.parts["stage"] not in [stage.name for stage in stages[:-1]]:
            raise Invalid(f"{step}: there is no stage of this name before it")
        if step.name == "ENTRYPOINT":
            stages[-1].entrypoint = words_of(step)
        else:
            stages[-1].steps.append(step)
    if not stages:
        raise Invalid("there is no FROM")
    return stages


def ignored_names(text):
    """The names that a .dockerignore has; only plain names of the top folder are understood."""
    names = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for name in names:
        if not re.fullmatch(r"[\w.-]+", name):
            raise Invalid(f".dockerignore: {name} is not a plain name")
    return names


def named_packages(command):
    """The packages that `apt-get install` of a command names itself, and not through a file."""
    found = []
    for call in re.findall(r"\bapt(?:-get)?\b[^&|;]*?\binstall\b([^&|;]*)", command):
        found += [word for word in call.split() if not word.startswith(("-", "/"))]
    return found
